"""``verl.trainer.constants_ppo``: what a recipe passes to ``ray.init`` as ``runtime_env``."""

from __future__ import annotations

import os
from typing import Any

from runtime.environment import WORKER_ENV

PASSED_ON = ("PYTHONPATH", "PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG")
"""Set here, they must be set in workers too; the first holds the alias, also on a cluster that was started without."""

PPO_RAY_RUNTIME_ENV: dict[str, Any] = {"env_vars": {"NCCL_DEBUG": "WARN", "VLLM_LOGGING_LEVEL": "WARN", **WORKER_ENV}}


def get_ppo_ray_runtime_env(config: Any = None) -> dict[str, Any]:  # noqa: ARG001  (of what Megatron needs)
    """The environment of workers: what the shell sets already is inherited and left out."""
    variables = {name: value for name, value in PPO_RAY_RUNTIME_ENV["env_vars"].items() if name not in os.environ}
    return {"env_vars": {**variables, **{name: os.environ[name] for name in PASSED_ON if name in os.environ}}}
