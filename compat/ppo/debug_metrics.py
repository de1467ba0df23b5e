"""``verl.utils.debug.metrics``: how far the rollout's probabilities are from the actor's."""

from __future__ import annotations

import math

import torch

from compat.ppo.columns import column, tensors
from compat.protocol import DataProto


def calculate_debug_metrics(data: DataProto) -> dict[str, float]:
    """``training/rollout_probs_diff_*`` and the correlation of both probabilities (arXiv:2506.13585), on mask-1 tokens.

    Reads ``rollout_log_probs`` and ``old_log_probs [B, R]``, ``responses`` for R, and ``response_mask``, or without one
    ``attention_mask``, or all tokens. Without a token, ``..._valid`` is 0 and the others are NaN.
    """
    rollout, actor = column(data, "rollout_log_probs"), column(data, "old_log_probs")
    names = ("response_mask", "attention_mask")
    masks = [column(data, name) for name in names if name in tensors(data)]
    mask = (masks[0] if masks else torch.ones_like(rollout))[:, -column(data, "responses").shape[1] :].bool()
    probabilities = torch.stack([actor[mask], rollout[mask]]).double().exp()
    figures = {"diff_max": math.nan, "diff_mean": math.nan, "diff_std": math.nan}
    correlation = math.nan
    if mask.any():
        difference = (probabilities[0] - probabilities[1]).abs()
        figures = {
            "diff_max": float(difference.max()),
            "diff_mean": float(difference.mean()),
            "diff_std": float(difference.std()) if difference.numel() > 1 else math.nan,
        }
        correlation = float(torch.corrcoef(probabilities)[0, 1])
    return {
        "training/rollout_probs_diff_valid": int(mask.any()),
        **{f"training/rollout_probs_{name}": value for name, value in figures.items()},
        "training/rollout_actor_probs_pearson_corr": correlation,
    }
