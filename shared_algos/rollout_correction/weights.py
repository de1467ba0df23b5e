"""Importance weights from the policy that sampled to the policy that is trained, and how they are spread."""

from __future__ import annotations

import torch
from torch import Tensor

from shared_algos.rollout_correction.pairs import Pairs
from shared_algos.rollout_correction.statistics import exp, extremes, mean, row_means, summary, token_mean, token_std
from shared_algos.rollout_correction.thresholds import Bounds


def importance_weights(
    pairs: Pairs, level: str, bounds: Bounds, batch_normalize: bool
) -> tuple[Tensor, dict[str, float]]:
    """Weights ``[N]`` and metrics ``rollout_is_*``, as verl's ``compute_rollout_correction_weights``.

    level: ``token`` (exp of the log-ratio) or ``sequence`` (exp of its sum over the row, on each of its tokens).
    bounds: without a lower one, weights are cut to the upper one (https://fengyao.notion.site/off-policy-rl); with one,
    those outside become 0 (IcePop). batch_normalize: whether to divide by the mean over tokens, or over rows.
    """
    rows, log_ratio = pairs.rows, pairs.log_ratio
    log_weights = rows.sum(log_ratio) if level == "sequence" else log_ratio
    raw = rows.spread(exp(log_weights)) if level == "sequence" else exp(log_weights)
    if bounds.lower is None:
        weights, metrics = raw.clamp(max=bounds.upper), {}
    else:
        outside = (raw < bounds.lower) | (raw > bounds.upper)
        weights, metrics = raw.masked_fill(outside, 0), {"rollout_is_oob_ratio": token_mean(outside, rows)}

    metrics |= _metrics(pairs, weights, raw, bounds)
    metrics |= _row_level(log_weights, bounds) if level == "sequence" else _token_level(pairs, weights, raw, bounds)
    if batch_normalize:
        factor = mean(row_means(weights, rows)) if level == "sequence" else token_mean(weights, rows)
        factor = factor if factor > 1e-8 else 1.0  # all weights 0: nothing to divide by
        weights, metrics["rollout_is_batch_norm_factor"] = weights / factor, factor
    return weights, metrics


def _lower(bounds: Bounds) -> float:
    """Below this a weight is counted as low: the lower bound, or the reciprocal of the upper where there is none."""
    return 1 / bounds.upper if bounds.lower is None else bounds.lower


def _token_level(pairs: Pairs, weights: Tensor, raw: Tensor, bounds: Bounds) -> dict[str, float]:
    return {
        **extremes("rollout_is", weights),
        "rollout_is_ratio_fraction_high": token_mean(raw > bounds.upper, pairs.rows),
        "rollout_is_ratio_fraction_low": token_mean(raw < _lower(bounds), pairs.rows),
    }


def _row_level(log_weights: Tensor, bounds: Bounds) -> dict[str, float]:
    """Extremes and fractions of the weights before they are cut, from the log-ratios' sums ``[L]``."""
    upper, lower = torch.tensor([bounds.upper, _lower(bounds)], dtype=torch.float64).log().tolist()
    return {
        **extremes("rollout_is", log_weights.clamp(max=20).exp()),
        "rollout_is_ratio_fraction_high": mean(log_weights > upper),
        "rollout_is_ratio_fraction_low": mean(log_weights < lower),
    }


def _metrics(pairs: Pairs, weights: Tensor, raw: Tensor, bounds: Bounds) -> dict[str, float]:
    """Spread, effective sample size (a share of the tokens) and the rows' mean weights."""
    rows = pairs.rows
    average, raw_means = token_mean(weights, rows), row_means(raw, rows)
    normalized = weights / (average + 1e-8)
    mean_square = token_mean(normalized.square(), rows)
    return {
        "rollout_is_mean": average,
        "rollout_is_std": token_std(weights, rows),
        "rollout_is_eff_sample_size": 1 / mean_square if mean_square else 0.0,
        **summary("rollout_is_seq", row_means(weights, rows), ideal=1),
        "rollout_is_seq_fraction_high": mean(raw_means > bounds.upper),
        "rollout_is_seq_fraction_low": mean(raw_means < _lower(bounds)),
    }
