"""The losses an engine minimises are those of ``shared_algos``, put together as the config says."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from runtime.engine.losses import ActorLoss, CriticLoss
from runtime.errors import ConfigError
from shared_algos.aggregation import Denominators


def actor_loss(scenarios: ModuleType, *overrides: str) -> tuple[ActorLoss, float, dict[str, float]]:
    loss, batch = ActorLoss(scenarios.make_config("unused", *overrides)), scenarios.make_batch()
    outputs = {"log_probs": batch["old_log_probs"] + 0.1, "entropy": torch.full((batch.responses.num_tokens,), 2.0)}
    part = loss(outputs, batch, Denominators.count(batch["response_mask"], batch.responses, loss.horizon))
    return loss, float(part.loss), {name: float(value) for name, value in part.metrics.items()}


def test_the_actors_terms_add_up(scenarios: ModuleType) -> None:
    loss, total, metrics = actor_loss(scenarios, "actor_rollout_ref.actor.kl_loss_coef=0.5")
    assert metrics["actor/entropy_loss"] == pytest.approx(2.0)
    assert metrics["actor/ppo_kl"] == pytest.approx(-0.1)
    expected = metrics["actor/pg_loss"] - 0.01 * metrics["actor/entropy_loss"] + 0.5 * metrics["actor/kl_loss"]
    assert total == pytest.approx(expected)
    assert loss.constants == {"actor/kl_coef": 0.5}


def test_terms_that_are_off_are_not_computed(scenarios: ModuleType) -> None:
    off = ("actor_rollout_ref.actor.use_kl_loss=false", "actor_rollout_ref.actor.entropy_coeff=0")
    loss, total, metrics = actor_loss(scenarios, *off)
    assert not loss.needs_entropy
    assert loss.constants == {}
    assert total == metrics["actor/pg_loss"]
    assert not {"actor/entropy_loss", "actor/kl_loss"} & set(metrics)


def test_entropy_can_be_reported_without_a_bonus(scenarios: ModuleType) -> None:
    on = ("actor_rollout_ref.actor.entropy_coeff=0", "actor_rollout_ref.actor.calculate_entropy=true")
    _, total, metrics = actor_loss(scenarios, "actor_rollout_ref.actor.use_kl_loss=false", *on)
    assert metrics["actor/entropy_loss"] == pytest.approx(2.0)
    assert total == metrics["actor/pg_loss"]


def test_the_horizon_is_the_scale_factor_when_set(scenarios: ModuleType) -> None:
    assert actor_loss(scenarios)[0].horizon == 16
    assert actor_loss(scenarios, "actor_rollout_ref.actor.loss_scale_factor=100")[0].horizon == 100


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("actor_rollout_ref.actor.policy_loss.loss_mode=vanila", "vanila"),
        ("actor_rollout_ref.actor.kl_loss_type=k9", "k9"),
        ("actor_rollout_ref.actor.loss_agg_mode=mean", "mean"),
        ("actor_rollout_ref.actor.clip_ratio_c=0.5", "clip_ratio_c"),
    ],
)
def test_a_bad_setting_is_refused_when_the_loss_is_built(scenarios: ModuleType, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        actor_loss(scenarios, override)


def test_the_critic_regresses_on_returns(scenarios: ModuleType) -> None:
    loss, batch = CriticLoss(scenarios.make_config("unused")), scenarios.make_batch()
    part = loss(
        {"values": batch["values"]}, batch, Denominators.count(batch["response_mask"], batch.responses, loss.horizon)
    )
    kept = batch["response_mask"].bool()
    expected = 0.5 * (batch["values"] - batch["returns"])[kept].square().double().mean()
    assert float(part.loss) == pytest.approx(float(expected))
    assert float(part.metrics["critic/vpred_mean"]) == pytest.approx(float(batch["values"][kept].mean()), abs=1e-6)
    assert float(part.metrics["critic/vf_clipfrac"]) == 0
