"""Estimates of KL(policy || reference) from the log-probs of sampled tokens, and what is done with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from shared_algos.aggregation import Denominators, aggregate, mean_over_rows, row_means
from shared_algos.errors import AlgorithmError
from shared_algos.reductions import masked
from shared_algos.segments import Segments

_FORMS = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
KL_PENALTIES = tuple(_FORMS) + tuple(f"{name}+" for name in _FORMS)


def kl_penalty(log_probs: Tensor, ref_log_probs: Tensor, kind: str) -> Tensor:
    """The estimate at each token ``[T]``, in the dtype of ``log_probs [T]``.

    kind: ``kl``/``k1``, ``abs``, ``mse``/``k2`` or ``low_var_kl``/``k3`` (http://joschu.net/blog/kl-approx.html).
    A ``+`` keeps the value and takes the gradient of k2: its expectation is the gradient of the KL, which that of the
    others is not. Follows verl's ``kl_penalty``, clamps included: k3's log-ratio to +-20, its result to 10.
    Raises ``AlgorithmError`` for an unknown kind.
    """
    check_kl_penalty(kind)
    value = _estimate(log_probs, ref_log_probs, _FORMS[kind.removesuffix("+")])
    if not kind.endswith("+"):
        return value
    carrier = _estimate(log_probs, ref_log_probs, "k2")
    return value.detach() + (carrier - carrier.detach())


def _estimate(log_probs: Tensor, ref_log_probs: Tensor, form: str) -> Tensor:
    log_ratio = log_probs - ref_log_probs
    if form == "k1":
        return log_ratio
    if form == "abs":
        return log_ratio.abs()
    if form == "k2":
        return 0.5 * log_ratio.square()
    reverse = (-log_ratio).clamp(-20, 20)
    # expm1, as exp(x) - x - 1 in float32 has no digit left where policy and reference are close.
    return (torch.expm1(reverse) - reverse).clamp(max=10)


def check_kl_penalty(kind: str) -> None:
    """Raise ``AlgorithmError`` unless ``kind`` is one of ``KL_PENALTIES``."""
    if kind not in KL_PENALTIES:
        raise AlgorithmError(f"unknown KL penalty {kind!r}; known are {', '.join(KL_PENALTIES)}")


def kl_loss(
    log_probs: Tensor,
    ref_log_probs: Tensor,
    mask: Tensor,
    segments: Segments,
    denominators: Denominators,
    kind: str,
    mode: str,
) -> Tensor:
    """KL as a term of the actor's loss (``actor.use_kl_loss``): ``kl_penalty`` aggregated, a float64 scalar partial.

    log_probs, ref_log_probs, mask: ``[T]``; mode: see ``aggregate``. The coefficient is the caller's.
    """
    penalty = kl_penalty(masked(log_probs, mask), masked(ref_log_probs, mask), kind)
    return aggregate(penalty, mask, segments, mode, denominators)


def apply_kl_penalty(
    token_level_scores: Tensor,
    old_log_probs: Tensor,
    ref_log_prob: Tensor,
    mask: Tensor,
    segments: Segments,
    beta: float,
    kind: str,
) -> tuple[Tensor, Tensor]:
    """KL as a part of the reward (``algorithm.use_kl_in_reward``), as verl's ``apply_kl_penalty``.

    Columns are ``[T]``. Returns ``token_level_rewards [T]``, scores less ``beta`` times the estimate on mask-1 tokens
    (a score on a mask-0 token stays: it is the outcome of a response that ends in an observation), and the mean KL,
    float64 scalar: over the tokens of each row, then over rows with a mask-1 token.
    """
    penalty = masked(kl_penalty(masked(old_log_probs, mask), masked(ref_log_prob, mask), kind), mask)
    mean = mean_over_rows(row_means(penalty, mask, segments), Denominators.count(mask, segments, 1))
    return token_level_scores - beta * penalty, mean


class KLController(Protocol):
    """Holds the coefficient of the KL in the reward."""

    value: float

    def update(self, current_kl: float, n_steps: int) -> None:
        """Take in the mean KL of a batch of ``n_steps`` trajectories."""


@dataclass
class FixedKLController:
    """A coefficient that stays as it is."""

    value: float

    def update(self, current_kl: float, n_steps: int) -> None:
        """Do nothing."""


@dataclass
class AdaptiveKLController:
    """A coefficient that follows a target KL (https://arxiv.org/abs/1909.08593), as verl's class of that name."""

    value: float
    target: float
    """The KL aimed at, in nats a token; positive."""
    horizon: float
    """Trajectories over which an error of 100 % would double the coefficient; positive."""

    def __post_init__(self) -> None:
        if self.target <= 0 or self.horizon <= 0:
            raise AlgorithmError(
                f"adaptive KL control needs a positive target_kl and horizon, got {self.target} and {self.horizon}"
            )

    def update(self, current_kl: float, n_steps: int) -> None:
        """Scale the coefficient by the relative error, cut to +-20 %."""
        error = min(max(current_kl / self.target - 1, -0.2), 0.2)
        self.value *= 1 + error * n_steps / self.horizon
