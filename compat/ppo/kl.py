"""KL of verl's ``core_algos``: estimates on padded tensors, controllers by verl's parameter names."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from compat.ppo.errors import BadSettingError, UnknownKindError
from shared_algos import kl


def kl_penalty(logprob: Tensor, ref_logprob: Tensor, kl_penalty: str) -> Tensor:
    """The estimate at each token, of any shape; see ``shared_algos.kl.kl_penalty``.

    Raises ``UnknownKindError`` (a ``NotImplementedError``, as in verl) for an unknown estimator.
    """
    if kl_penalty not in kl.KL_PENALTIES:
        raise UnknownKindError(f"there is no KL estimator {kl_penalty!r}; use one of {', '.join(kl.KL_PENALTIES)}")
    return kl.kl_penalty(logprob, ref_logprob, kl_penalty)


def kl_penalty_forward(logprob: Tensor, ref_logprob: Tensor, kl_penalty: str) -> Tensor:
    """``kl_penalty`` of an estimator without ``+``: value and gradient are the estimator's own."""
    if kl_penalty.endswith("+"):
        raise UnknownKindError(f"kl_penalty_forward takes {kl_penalty[:-1]!r} without +; for the + call kl_penalty")
    return _kl_penalty(logprob, ref_logprob, kl_penalty)


_kl_penalty = kl_penalty  # the parameter of that name hides the function


def compute_rewards(token_level_scores: Tensor, old_log_prob: Tensor, ref_log_prob: Tensor, kl_ratio: float) -> Tensor:
    """Scores ``[B, R]`` less ``kl_ratio`` times the k1 estimate."""
    return token_level_scores - kl_ratio * kl.kl_penalty(old_log_prob, ref_log_prob, "kl")


class FixedKLController(kl.FixedKLController):
    """A coefficient that stays as it is."""

    def __init__(self, kl_coef: float) -> None:
        super().__init__(kl_coef)


class AdaptiveKLController(kl.AdaptiveKLController):
    """A coefficient that follows a target KL."""

    def __init__(self, init_kl_coef: float, target_kl: float, horizon: float) -> None:
        super().__init__(init_kl_coef, target_kl, horizon)


def get_kl_controller(kl_ctrl: Any) -> FixedKLController | AdaptiveKLController:
    """The controller that ``algorithm.kl_ctrl`` (``type``, ``kl_coef``, ``target_kl``, ``horizon``) describes.

    Raises ``UnknownKindError`` (a ``NotImplementedError``, as in verl) for another type, ``BadSettingError`` (an
    ``AssertionError``, as in verl) for a horizon that is not positive.
    """
    if kl_ctrl.type == "fixed":
        return FixedKLController(kl_ctrl.kl_coef)
    if kl_ctrl.type != "adaptive":
        raise UnknownKindError(f"kl_ctrl.type={kl_ctrl.type!r} is no KL controller; use fixed or adaptive")
    if kl_ctrl.horizon <= 0:
        raise BadSettingError(f"kl_ctrl.horizon={kl_ctrl.horizon} must be above 0: a number of rows is divided by it")
    return AdaptiveKLController(kl_ctrl.kl_coef, kl_ctrl.target_kl, kl_ctrl.horizon)
