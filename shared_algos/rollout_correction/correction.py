"""The whole of rollout correction in one call."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shared_algos.rollout_correction.config import RolloutCorrectionConfig
from shared_algos.rollout_correction.off_policy import measure, named
from shared_algos.rollout_correction.pairs import Pairs
from shared_algos.rollout_correction.rejection import reject
from shared_algos.rollout_correction.weights import importance_weights
from shared_algos.segments import Segments


@dataclass(frozen=True, eq=False)
class Correction:
    """What a policy loss is given instead of the plain mask."""

    weights: Tensor | None
    """``[T]`` in the dtype of the log-probs, 0 where ``response_mask`` is; ``None`` where none are configured."""
    response_mask: Tensor
    """``[T]`` in the dtype of the mask that came in, 0 where a token is rejected."""
    metrics: dict[str, float]
    """``rollout_corr/*``."""


@torch.no_grad()
def correct(
    log_probs: Tensor,
    rollout_log_probs: Tensor,
    response_mask: Tensor,
    segments: Segments,
    config: RolloutCorrectionConfig,
) -> Correction:
    """Weights, rejection and metrics of a batch, as verl's ``compute_rollout_correction_and_rejection_mask``.

    log_probs: ``[T]`` of the policy that is trained: the old one in decoupled mode (the whole batch), the current one
    in bypass mode (a mini-batch). rollout_log_probs: ``[T]`` of the policy that sampled. response_mask: ``[T]``.
    Weights, and the mean that normalises them, are of the mask that came in, before anything is rejected. A batch
    without a mask-1 token comes back as it is, without metrics.

    Raises ``NonFiniteError`` naming the row of a log-prob that is NaN; what stands at mask-0 positions never enters.
    """
    pairs = Pairs.of(log_probs, rollout_log_probs, response_mask, segments)
    mask, weights = response_mask, None if config.rollout_is is None else torch.zeros_like(log_probs)
    if not pairs.rows.num_rows:
        return Correction(weights, mask, {})
    kept, metrics = torch.ones_like(pairs.tokens, dtype=torch.bool), measure(pairs)
    if config.rules:
        kept, of_rejection = reject(pairs, config.rules)
        mask = mask.index_fill(0, pairs.tokens[~kept], 0)
        metrics |= of_rejection
    if config.rollout_is is not None and weights is not None:
        found, of_weights = importance_weights(
            pairs, config.rollout_is, config.weight_bounds, config.rollout_is_batch_normalize
        )
        weights[pairs.tokens[kept]] = found[kept].to(weights.dtype)
        metrics |= of_weights
    return Correction(weights, mask, named(metrics))
