"""AdamW with verl's learning-rate schedules, and the guarded optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from runtime.engine.spec import OptimizerSpec
from runtime.errors import ConfigError


def build_optimizer(parameters: Iterable[nn.Parameter], spec: OptimizerSpec) -> tuple[AdamW, LambdaLR]:
    """AdamW over ``parameters`` and its schedule, which moves once a training step."""
    optimizer = AdamW(parameters, lr=spec.lr, betas=spec.betas, weight_decay=spec.weight_decay, **spec.more)
    return optimizer, LambdaLR(optimizer, lr_factor(spec))


def lr_factor(spec: OptimizerSpec) -> Callable[[int], float]:
    """The factor on ``lr`` at training step 0, 1, ...: linear warm-up from 0, then constant or a cosine.

    As verl's ``get_constant_schedule_with_warmup`` and ``get_cosine_schedule_with_warmup``: the first step of a warm-up
    is at 0. Raises ConfigError when the schedule needs ``total_training_steps`` and has none.
    """
    total = spec.total_training_steps
    by_ratio = spec.lr_warmup_steps <= 0 and spec.lr_warmup_steps_ratio > 0
    if total <= 0 and (by_ratio or spec.lr_scheduler_type == "cosine"):
        raise ConfigError(
            f"optim.total_training_steps={total} must be positive for lr_scheduler_type={spec.lr_scheduler_type} "
            f"with lr_warmup_steps_ratio={spec.lr_warmup_steps_ratio}; set trainer.total_training_steps"
        )
    warmup = int(spec.lr_warmup_steps_ratio * total) if by_ratio else max(0, spec.lr_warmup_steps)
    after = _after_warmup(spec, warmup)
    return lambda step: step / warmup if step < warmup else after(step)


def _after_warmup(spec: OptimizerSpec, warmup: int) -> Callable[[int], float]:
    if spec.lr_scheduler_type == "constant":
        return lambda _step: 1.0
    if spec.lr_scheduler_type != "cosine":
        raise ConfigError(f"optim.lr_scheduler_type={spec.lr_scheduler_type!r} is not constant or cosine")
    floor, span = spec.min_lr_ratio, max(1, spec.total_training_steps - warmup)

    def cosine(step: int) -> float:
        wave = math.cos(2 * math.pi * spec.num_cycles * (step - warmup) / span)
        return max(floor, floor + (1 - floor) * (1 + wave) / 2)

    return cosine


def clip_and_step(optimizer: AdamW, max_norm: float) -> float:
    """Scale gradients down to an L2 norm of ``max_norm``, step, and return the norm before scaling.

    The norm is over all parameters and ranks; the call is collective. As in verl, nothing is updated when the norm is
    not finite: gradients are dropped and the caller sees the norm.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm: Tensor = nn.utils.clip_grad_norm_(parameters, max_norm)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if torch.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(norm)
