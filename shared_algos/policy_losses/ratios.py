"""The pieces that most losses are made of."""

from __future__ import annotations

from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""verl's. A ratio beyond it (4.9e8) says no more than "far off", and in float32 ``exp`` would soon be infinite."""


def bounded(log_ratio: Tensor) -> Tensor:
    """``log_ratio [T]`` clamped to +-``LOG_RATIO_BOUND``, without gradient beyond."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def surrogates(advantages: Tensor, ratio: Tensor, clip_range: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """The losses ``[T]`` of ratios ``[T]`` as they are and clipped; PPO takes the larger of the two."""
    return -advantages * ratio, -advantages * ratio.clamp(*clip_range)


def policy_gradient(advantages: Tensor, log_probs: Tensor, weight: Tensor) -> Tensor:
    """REINFORCE's loss ``[T]`` with ``weight [T]`` as a constant factor: only ``log_probs`` get a gradient."""
    return -advantages * weight.detach() * log_probs
