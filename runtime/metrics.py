"""Figures of a finished batch: rewards, lengths, advantages."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from runtime.trajectories import TrajectoryBatch

READS: tuple[str, ...] = (
    "response_mask",
    "token_level_scores",
    "token_level_rewards",
    "advantages",
    "returns",
)
"""The fields that ``batch_metrics`` needs; ``values`` and ``entropy`` join them where they are computed."""


def batch_metrics(batch: TrajectoryBatch, max_response_length: int) -> dict[str, float]:
    """The figures that verl's ``compute_data_metrics`` logs, under its names, summed in float64.

    Scores and rewards are per row, entropy (nats), advantages, returns and values per mask-1 token, lengths in tokens.
    """
    kept = batch["response_mask"].bool()
    lengths = batch.responses.lengths.double()
    metrics = {
        **_spread("critic/score", batch.responses.sum(batch["token_level_scores"])),
        **_spread("critic/rewards", batch.responses.sum(batch["token_level_rewards"])),
        **_spread("critic/advantages", batch["advantages"][kept]),
        **_spread("critic/returns", batch["returns"][kept]),
        **_spread("response_length", lengths),
        **_spread("prompt_length", batch.prompts.lengths.double()),
        "response_length/clip_ratio": float((lengths >= max_response_length).double().mean()),
        "perf/total_num_tokens": float(batch.sequences.num_tokens),
    }
    if "entropy" in batch:
        metrics["actor/entropy"] = _mean(batch["entropy"][kept])
    if "values" in batch:
        metrics |= _spread("critic/values", batch["values"][kept]) | _explained_variance(batch, kept)
    return metrics


def _mean(values: Tensor) -> float:
    return float(values.double().mean()) if values.numel() else 0.0


def _spread(name: str, values: Tensor) -> dict[str, float]:
    if not values.numel():
        return {f"{name}/{figure}": 0.0 for figure in ("mean", "max", "min")}
    values = values.double()
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def _explained_variance(batch: TrajectoryBatch, kept: Tensor) -> dict[str, float]:
    returns, values = batch["returns"][kept].double(), batch["values"][kept].double()
    if returns.numel() < 2:
        return {}
    variance = torch.var(returns)
    return {"critic/vf_explained_var": float(1.0 - torch.var(returns - values) / (variance + 1e-5))}


def by_source(sources: Iterable[str], totals: Tensor) -> dict[str, list[float]]:
    """Row totals ``[B]`` by the ``data_source`` of each row."""
    scores: dict[str, list[float]] = {}
    for source, total in zip(sources, totals.tolist(), strict=True):
        scores.setdefault(source, []).append(total)
    return scores
