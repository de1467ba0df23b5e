"""The settings of all policy losses in one place, checked when they are read."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from shared_algos.aggregation import check_aggregation
from shared_algos.errors import AlgorithmError
from shared_algos.rollout_correction import RolloutCorrectionConfig


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


@dataclass(frozen=True)
class PolicyLossConfig:
    """Settings of the policy losses, with verl's names and defaults. Raises ``AlgorithmError`` naming a bad one."""

    clip_ratio: float = 0.2
    """The probability ratio is clipped to 1 - clip_ratio and 1 + clip_ratio (geo_mean: the log-ratio to -clip_ratio and
    clip_ratio; dppo_tv, dppo_kl: the largest divergence at which a token still learns) ..."""
    clip_ratio_low: float | None = None
    """... unless this sets the lower distance ..."""
    clip_ratio_high: float | None = None
    """... or this the upper."""
    clip_ratio_c: float = 3.0
    """Where the advantage is negative, the loss stops growing at this ratio (dual clip); above 1. dppo_tv, dppo_kl: the
    importance weight is truncated here, and a much larger value biases less."""
    loss_agg_mode: str = "token-mean"
    """How token losses become one number, see ``aggregate``. geo_mean and sapo have ways of their own."""
    tau_pos: float = 1.0
    """sapo: how sharply the gate closes where the advantage is positive; positive ..."""
    tau_neg: float = 1.05
    """... and where it is not."""
    clip_cov_ratio: float = 0.0002
    """clip_cov: share of the mini-batch's tokens that are left out of the loss, at least one; positive."""
    clip_cov_lb: float = 1.0
    """clip_cov: only tokens whose covariance lies above this are left out ..."""
    clip_cov_ub: float = 5.0
    """... and below this."""
    kl_cov_ratio: float = 0.0002
    """kl_cov: share of the mini-batch's tokens that are penalised, at least one; above 0, at most 1."""
    ppo_kl_coef: float = 0.1
    """kl_cov: weight of the penalty, the absolute log-ratio."""
    dro_beta: float | None = None
    """dro: weight of the squared log-ratio; positive, and has no default."""
    rollout_correction: RolloutCorrectionConfig | None = None
    """bypass_mode: how log-probs of the rollout are corrected, and by which of its two losses."""
    source: Any = None
    """The ``actor`` group of the recipe as it is, handed on to functions with verl's signature."""

    def __post_init__(self) -> None:
        check_aggregation(self.loss_agg_mode)
        for field in fields(self):
            if isinstance(field.default, float):
                self._check(field.name, _is_number(getattr(self, field.name)), "a finite number")
        self._check("clip_ratio_c", self.clip_ratio_c > 1, "greater than 1")
        for name in ("tau_pos", "tau_neg", "clip_cov_ratio"):
            self._check(name, getattr(self, name) > 0, "positive")
        self._check("clip_cov_lb", self.clip_cov_lb < self.clip_cov_ub, f"below clip_cov_ub, {self.clip_cov_ub}")
        self._check("kl_cov_ratio", 0 < self.kl_cov_ratio <= 1, "above 0 and at most 1")
        self._check("ppo_kl_coef", self.ppo_kl_coef >= 0, "at least 0")
        self._check("dro_beta", self.dro_beta is None or self.dro_beta > 0, "positive")

    def _check(self, name: str, holds: bool, condition: str) -> None:
        if not holds:
            raise AlgorithmError(f"{name} must be {condition}, got {getattr(self, name)}")

    @property
    def clip_distances(self) -> tuple[float, float]:
        """How far down and how far up clipping lets go, both as positive numbers."""
        low = self.clip_ratio if self.clip_ratio_low is None else self.clip_ratio_low
        high = self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high
        return low, high

    @property
    def clip_range(self) -> tuple[float, float]:
        """The bounds of the probability ratio."""
        low, high = self.clip_distances
        return 1 - low, 1 + high
