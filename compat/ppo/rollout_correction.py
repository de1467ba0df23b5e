"""``verl.trainer.ppo.rollout_corr_helper`` and its 0.6 form ``mismatch_helper``, on padded ``[B, R]``."""

from __future__ import annotations

from typing import Any

import torch
from omegaconf import DictConfig, open_dict
from torch import Tensor

from compat.algorithms.configs import correction_from
from compat.algorithms.padded import as_packed
from compat.ppo.columns import column, ensure_response_mask, tensors
from compat.ppo.errors import BadSettingError
from compat.protocol import DataProto
from shared_algos.rollout_correction import RolloutCorrectionConfig, correct, off_policy_metrics
from shared_algos.rollout_correction.off_policy import PREFIX
from shared_algos.rollout_correction.pairs import Pairs
from shared_algos.rollout_correction.rejection import parse_rules, reject
from shared_algos.rollout_correction.thresholds import Bounds
from shared_algos.rollout_correction.weights import importance_weights

SAFETY_BOUND = 20.0
"""Largest exponent of a weight; part of the core, here as the name that verl's module has."""

REJECTION_OF_LEVEL = {"token": "token_k1", "sequence": "seq_sum_k1"}
"""The modes of verl 0.6's masks and what they became."""


def compute_rollout_correction_and_rejection_mask(
    old_log_prob: Tensor,
    rollout_log_prob: Tensor,
    response_mask: Tensor,
    rollout_is: str | None = None,
    rollout_is_threshold: str | float | None = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: str | None = None,
    rollout_rs_threshold: str | float | None = None,
) -> tuple[DataProto | None, Tensor, dict[str, float]]:
    """Weights as a ``DataProto`` with ``rollout_is_weights`` (``None`` where off), the mask after rejection, metrics.

    See ``shared_algos.rollout_correction.correct``; weights of rejected tokens are 0 here. Raises ``AlgorithmError``
    (a ``ValueError``, as in verl) for settings that do not exist, shapes that differ or a mask without a 1.
    """
    shapes = {tuple(values.shape) for values in (old_log_prob, rollout_log_prob, response_mask)}
    if len(shapes) > 1:
        raise BadSettingError(f"log-probs and response_mask have shapes {sorted(shapes)}; they must be one [B, R]")
    _check_mask(response_mask)
    config = RolloutCorrectionConfig(
        rollout_is=None if rollout_is_threshold is None else rollout_is,
        rollout_is_threshold=2.0 if rollout_is_threshold is None else rollout_is_threshold,
        rollout_is_batch_normalize=rollout_is_batch_normalize,
        rollout_rs=rollout_rs,
        rollout_rs_threshold=rollout_rs_threshold,
    )
    segments, mask = as_packed(response_mask)
    found = correct(as_packed(old_log_prob)[1], as_packed(rollout_log_prob)[1], mask, segments, config)
    weights = None
    if found.weights is not None:
        weights = DataProto.from_dict(tensors={"rollout_is_weights": found.weights.view_as(old_log_prob)})
    return weights, found.response_mask.view_as(response_mask), found.metrics


def compute_rollout_correction_and_add_to_batch(
    batch: DataProto, rollout_corr_config: Any
) -> tuple[DataProto, dict[str, float]]:
    """Set ``response_mask`` after rejection and, where they are on, ``rollout_is_weights``; the batch and metrics.

    rollout_corr_config: the ``algorithm.rollout_correction`` group; what it does not hold is off.
    """
    config = correction_from(rollout_corr_config)
    weights, mask, metrics = compute_rollout_correction_and_rejection_mask(
        column(batch, "old_log_probs"),
        column(batch, "rollout_log_probs"),
        ensure_response_mask(batch),
        config.rollout_is,
        config.rollout_is_threshold,
        config.rollout_is_batch_normalize,
        config.rollout_rs,
        config.rollout_rs_threshold,
    )
    tensors(batch)["response_mask"] = mask
    if weights is not None:
        tensors(batch)["rollout_is_weights"] = column(weights, "rollout_is_weights")
    return batch, metrics


def apply_bypass_mode(
    batch: DataProto, rollout_corr_config: Any = None, policy_loss_config: DictConfig | None = None
) -> None:
    """Let ``rollout_log_probs`` be ``old_log_probs``, and the policy loss correct against them.

    policy_loss_config: the ``actor.policy_loss`` group; it gets ``loss_mode=bypass_mode`` and the correction.
    Raises ``BadSettingError`` (a ``ValueError``, as in verl) where the batch has no ``rollout_log_probs``.
    """
    if "rollout_log_probs" not in tensors(batch):
        raise BadSettingError(
            "bypass_mode=true needs the column rollout_log_probs; "
            "set actor_rollout_ref.rollout.calculate_log_probs=true"
        )
    tensors(batch)["old_log_probs"] = tensors(batch)["rollout_log_probs"]
    if policy_loss_config is not None:
        with open_dict(policy_loss_config):
            policy_loss_config["rollout_correction"] = rollout_corr_config
            policy_loss_config["loss_mode"] = "bypass_mode"


def compute_rollout_correction_weights(
    log_ratio: Tensor,
    response_mask: Tensor,
    rollout_is: str = "token",
    rollout_is_threshold: str | float = 2.0,
    rollout_is_batch_normalize: bool = False,
) -> tuple[Tensor, dict[str, float]]:
    """Weights ``[B, R]`` of ``log_ratio [B, R]`` (training less rollout log-prob), and metrics without prefix."""
    config = RolloutCorrectionConfig(rollout_is=rollout_is, rollout_is_threshold=rollout_is_threshold)
    return _weights(log_ratio, response_mask, rollout_is, config.weight_bounds, rollout_is_batch_normalize)


def compute_rollout_rejection_mask(
    log_ratio: Tensor,
    response_mask: Tensor,
    rollout_rs: str = "token_k1",
    rollout_rs_threshold: str | float | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """``response_mask [B, R]`` without what the modes reject, and metrics without prefix."""
    pairs = _pairs(log_ratio, response_mask)
    kept, metrics = reject(pairs, parse_rules(rollout_rs, rollout_rs_threshold))
    mask = as_packed(response_mask)[1].index_fill(0, pairs.tokens[~kept], 0)
    return mask.view_as(response_mask), metrics


def compute_offpolicy_metrics(
    old_log_prob: Tensor, rollout_log_prob: Tensor | None, response_mask: Tensor
) -> dict[str, float]:
    """How far the two policies are apart, without prefix (``compute_mismatch_metrics`` in 0.6)."""
    _check_mask(response_mask)
    metrics = _measured(old_log_prob, rollout_log_prob, response_mask)
    return {name.removeprefix(PREFIX): value for name, value in metrics.items()}


def compute_rollout_corr_metrics_from_logprobs(
    log_prob: Tensor, rollout_log_prob: Tensor, response_mask: Tensor
) -> dict[str, float]:
    """As ``compute_offpolicy_metrics``, with the prefix ``rollout_corr/``."""
    _check_mask(response_mask)
    return _measured(log_prob, rollout_log_prob, response_mask)


def compute_rollout_importance_weights(
    old_log_prob: Tensor,
    rollout_log_prob: Tensor,
    response_mask: Tensor,
    rollout_is_level: str = "token",
    rollout_is_mode: str = "truncate",
    rollout_is_threshold: float | None = None,
    rollout_is_threshold_lower: float | None = None,
    rollout_is_veto_threshold: float | None = None,
) -> tuple[DataProto | None, Tensor, dict[str, float]]:
    """The form of verl 0.6: weights cut to the upper threshold, or as they are beside a mask of what lies outside.

    Bounds are of training over rollout probability, the lower one the reciprocal of the upper unless given. Metrics
    have the prefix ``mismatch/`` and the names of today.
    Raises ``BadSettingError`` (a ``ValueError``) for the geometric level and for the veto, which verl removed too.
    """
    if rollout_is_threshold is None:
        return None, response_mask, {}
    if rollout_is_level not in REJECTION_OF_LEVEL or rollout_is_mode not in ("truncate", "mask"):
        raise BadSettingError(
            f"rollout_is_level={rollout_is_level!r} with rollout_is_mode={rollout_is_mode!r} is not available; use "
            "token or sequence with truncate or mask (geometric: rollout_correction.rollout_rs=seq_mean_k1)"
        )
    if rollout_is_veto_threshold is not None:
        raise BadSettingError("rollout_is_veto_threshold went with verl 0.7.1; use rollout_correction.rollout_rs")
    upper = rollout_is_threshold
    lower = 1 / upper if rollout_is_threshold_lower is None else rollout_is_threshold_lower
    log_ratio, mask = old_log_prob - rollout_log_prob, response_mask
    largest = upper if rollout_is_mode == "truncate" else float("inf")
    weights, metrics = _weights(log_ratio, response_mask, rollout_is_level, Bounds(None, largest), False)
    if rollout_is_mode == "mask":
        threshold = f"{1 / upper}_{1 / lower}"  # k1 bounds the reciprocal
        mask, of_rejection = compute_rollout_rejection_mask(
            log_ratio, response_mask, REJECTION_OF_LEVEL[rollout_is_level], threshold
        )
        metrics |= of_rejection
    metrics |= compute_offpolicy_metrics(old_log_prob, rollout_log_prob, response_mask)
    proto = DataProto.from_dict(tensors={"rollout_is_weights": weights})
    return proto, mask, {f"mismatch/{name}": value for name, value in metrics.items()}


def _weights(
    log_ratio: Tensor, response_mask: Tensor, level: str, bounds: Bounds, normalize: bool
) -> tuple[Tensor, dict[str, float]]:
    pairs = _pairs(log_ratio, response_mask)
    found, metrics = importance_weights(pairs, level, bounds, normalize)
    weights = torch.zeros_like(as_packed(log_ratio)[1])
    weights[pairs.tokens] = found.to(weights.dtype)
    return weights.view_as(log_ratio), metrics


def _pairs(log_ratio: Tensor, response_mask: Tensor) -> Pairs:
    _check_mask(response_mask)
    segments, mask = as_packed(response_mask)
    ratio = as_packed(log_ratio)[1]
    return Pairs.of(ratio, torch.zeros_like(ratio), mask, segments)


def _measured(log_prob: Tensor, rollout_log_prob: Tensor | None, response_mask: Tensor) -> dict[str, float]:
    segments, mask = as_packed(response_mask)
    rollout = None if rollout_log_prob is None else as_packed(rollout_log_prob)[1]
    return off_policy_metrics(as_packed(log_prob)[1], rollout, mask, segments)


def _check_mask(response_mask: Tensor) -> None:
    if not response_mask.any():
        raise BadSettingError("response_mask has no 1, so that there is nothing to correct or to measure")
