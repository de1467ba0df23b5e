"""Schedules as verl's, clipping, and the step that is skipped."""

from __future__ import annotations

import math

import pytest
import torch

from runtime.engine.optim import build_optimizer, clip_and_step, lr_factor
from runtime.engine.spec import OptimizerSpec
from runtime.errors import ConfigError


def factors(steps: int, **settings: object) -> list[float]:
    factor = lr_factor(OptimizerSpec(lr=1.0, **settings))
    return [factor(step) for step in range(steps)]


def test_constant_after_a_warm_up_from_zero() -> None:
    assert factors(6, lr_warmup_steps=4) == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors(3) == [1.0, 1.0, 1.0]
    assert factors(4, lr_warmup_steps_ratio=0.2, total_training_steps=10) == [0.0, 0.5, 1.0, 1.0]


def test_cosine_falls_to_its_floor() -> None:
    values = factors(13, lr_scheduler_type="cosine", lr_warmup_steps=2, total_training_steps=12, min_lr_ratio=0.1)
    assert values[:3] == [0.0, 0.5, 1.0]
    assert values[7] == pytest.approx(0.55)
    assert values[12] == pytest.approx(0.1)
    assert values[4] == pytest.approx(0.55 + 0.45 * math.cos(math.pi * 0.2))


@pytest.mark.parametrize("settings", [{"lr_scheduler_type": "cosine"}, {"lr_warmup_steps_ratio": 0.1}])
def test_a_schedule_over_an_unknown_length_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="total_training_steps=-1"):
        factors(1, **settings)


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(ConfigError, match="'wsd' is not constant or cosine"):
        factors(1, lr_scheduler_type="wsd")


def test_clipping_scales_the_step_and_reports_the_norm_before() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer, _ = build_optimizer([parameter], OptimizerSpec(lr=1.0, weight_decay=0.0, more={"eps": 1.0}))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert clip_and_step(optimizer, 1.0) == pytest.approx(5.0)
    # Adam's first step is lr * g / (|g| + eps) with g clipped to norm 1.
    torch.testing.assert_close(parameter.data, -torch.tensor([0.6 / 1.6, 0.8 / 1.8]))
    assert parameter.grad is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_updates_nothing(bad: float) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer, _ = build_optimizer([parameter], OptimizerSpec(lr=1.0))
    parameter.grad = torch.tensor([bad, 1.0])
    assert not math.isfinite(clip_and_step(optimizer, 1.0))
    assert torch.equal(parameter.data, torch.ones(2))
    assert not optimizer.state
    assert parameter.grad is None
