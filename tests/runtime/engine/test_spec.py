"""Engines are built from verl's keys, and a key that cannot be followed is refused by name."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from runtime.engine.micro_batches import WHOLE, RowLimit, TokenLimit
from runtime.engine.spec import Role, actor_spec, critic_spec, ref_spec
from runtime.errors import ConfigError

ACTOR = "actor_rollout_ref.actor"


def test_limits_are_rows_tokens_or_none(scenarios: ModuleType, tiny_model: str) -> None:
    rows = actor_spec(scenarios.make_config(tiny_model))
    assert (rows.infer_limit, rows.train_limit) == (RowLimit(4), RowLimit(4))
    dynamic = scenarios.make_config(
        tiny_model, f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=99"
    )
    tokens = actor_spec(dynamic)
    assert (tokens.infer_limit, tokens.train_limit) == (TokenLimit(99), TokenLimit(99))
    assert ref_spec(dynamic).infer_limit == TokenLimit(99)
    assert critic_spec(dynamic).train_limit == TokenLimit(32768)
    whole = actor_spec(scenarios.make_config(tiny_model, f"{ACTOR}.ppo_micro_batch_size_per_gpu=null"))
    assert whole.train_limit == WHOLE


def test_only_the_reference_has_no_optimizer(scenarios: ModuleType, tiny_model: str) -> None:
    config = scenarios.make_config(tiny_model, "critic.optim.lr=3e-4", "critic.grad_clip=0.5", "runtime.seed=7")
    actor, reference, critic = actor_spec(config), ref_spec(config), critic_spec(config)
    assert (actor.role, reference.role, critic.role) == (Role.POLICY, Role.POLICY, Role.VALUE)
    assert actor.optimizer is not None
    assert reference.optimizer is None
    assert critic.optimizer is not None
    assert (critic.optimizer.lr, critic.optimizer.grad_clip, critic.model.seed) == (3e-4, 0.5, 7)
    assert actor.optimizer.more == {"eps": 0.01}


def test_types_of_parameters_and_of_computation(scenarios: ModuleType, tiny_model: str) -> None:
    group = f"{ACTOR}.fsdp_config"
    model = actor_spec(scenarios.make_config(tiny_model, f"{group}.dtype=bfloat16", f"{group}.model_dtype=fp32")).model
    assert (model.dtype, model.compute_dtype) == (torch.float32, torch.bfloat16)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"{ACTOR}.fsdp_config.dtype=int8", "dtype='int8' is not one of"),
        (f"{ACTOR}.strategy=megatron", "strategy 'megatron' is not available; use fsdp2"),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=0", f"{ACTOR}.ppo_micro_batch_size_per_gpu must be at least 1, got 0"),
        (f"{ACTOR}.optim.optimizer=Muon", f"{ACTOR}.optim.optimizer=Muon"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    override: str, message: str, scenarios: ModuleType, tiny_model: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        actor_spec(scenarios.make_config(tiny_model, override))


def test_an_attention_implementation_of_the_config_is_reported(
    scenarios: ModuleType, tiny_model: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = "+actor_rollout_ref.model.override_config"
    config = scenarios.make_config(tiny_model, f"{key}.attn_implementation=eager", f"{key}.rope_theta=5000.0")
    assert actor_spec(config).model.override_config == {"rope_theta": 5000.0}
    assert "attn_implementation=eager has no effect" in caplog.text
