"""The environment with vLLM in it: a config that asks for the engine is still refused, with the reason."""

import pytest

from runtime.config import load_config
from runtime.errors import ConfigError

pytestmark = pytest.mark.vllm


def test_a_config_that_asks_for_vllm_is_refused_until_the_engine_is_built():
    pytest.importorskip("vllm", reason="installed by the extra 'vllm' only")
    with pytest.raises(ConfigError, match="vllm"):
        load_config("tiny", ["actor_rollout_ref.rollout.name=vllm"])
