"""Figures of a finished batch: rewards, lengths, advantages."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, eq=False)
class BatchFigures:
    """What ``data_metrics`` looks at: B rows with N mask-1 tokens."""

    scores: Tensor
    """``[B]``, the total score of each row."""
    rewards: Tensor
    """``[B]``, the score less the KL in the reward."""
    advantages: Tensor
    """``[N]``"""
    returns: Tensor
    """``[N]``"""
    prompt_lengths: Tensor
    """``[B]``, tokens."""
    response_lengths: Tensor
    """``[B]``, tokens."""
    max_response_length: int
    max_prompt_length: int
    values: Tensor | None = None
    """``[N]``, the critic's."""


def batch_metrics(batch: TrajectoryBatch, max_response_length: int, max_prompt_length: int) -> dict[str, float]:
    """The figures that verl's ``compute_data_metrics`` logs, under its names, summed in float64.

    Scores and rewards are per row, entropy (nats), advantages, returns and values per mask-1 token, lengths in tokens.
    """
    kept = batch["response_mask"].bool()
    figures = BatchFigures(
        scores=batch.responses.sum(batch["token_level_scores"]),
        rewards=batch.responses.sum(batch["token_level_rewards"]),
        advantages=batch["advantages"][kept],
        returns=batch["returns"][kept],
        prompt_lengths=batch.prompts.lengths,
        response_lengths=batch.responses.lengths,
        max_response_length=max_response_length,
        max_prompt_length=max_prompt_length,
        values=batch["values"][kept] if "values" in batch else None,
    )
    metrics = {**data_metrics(figures), "perf/total_num_tokens": float(batch.sequences.num_tokens)}
    if "entropy" in batch:
        metrics["actor/entropy"] = _mean(batch["entropy"][kept], 0.0)
    return metrics


def data_metrics(figures: BatchFigures, of_nothing: float = 0.0) -> dict[str, float]:
    """The figures that verl's ``compute_data_metrics`` logs, under its names.

    Rows without a response token count among the lengths and nowhere else. of_nothing: the mean and the extremes of no
    value.
    """

    def spread(name: str, values: Tensor) -> dict[str, float]:
        return _spread(name, values, of_nothing)

    lengths, longest = figures.response_lengths.double(), figures.max_response_length
    played = lengths > 0
    metrics = {
        **spread("critic/score", figures.scores[played]),
        **spread("critic/rewards", figures.rewards[played]),
        **spread("critic/advantages", figures.advantages),
        **spread("critic/returns", figures.returns),
        **spread("response_length", lengths),
        "response_length/clip_ratio": _mean(lengths >= longest, of_nothing),
        **spread("response_length_non_aborted", lengths[played]),
        "response_length_non_aborted/clip_ratio": _mean(lengths[played] >= longest, of_nothing),
        "response/aborted_ratio": _mean(~played, of_nothing),
        **spread("prompt_length", figures.prompt_lengths),
        "prompt_length/clip_ratio": _mean(figures.prompt_lengths >= figures.max_prompt_length, of_nothing),
    }
    if figures.values is not None:
        metrics |= spread("critic/values", figures.values)
        metrics |= _explained_variance(figures.returns.double(), figures.values.double())
    return metrics


def _mean(values: Tensor, of_nothing: float) -> float:
    return float(values.double().mean()) if values.numel() else of_nothing


def _spread(name: str, values: Tensor, of_nothing: float) -> dict[str, float]:
    if not values.numel():
        return {f"{name}/{figure}": of_nothing for figure in ("mean", "max", "min")}
    values = values.double()
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def _explained_variance(returns: Tensor, values: Tensor) -> dict[str, float]:
    """The share of the returns' variance that the values account for; fewer than two tokens have no variance."""
    if returns.numel() < 2:
        return {}
    variance = torch.var(returns)
    return {"critic/vf_explained_var": float(1.0 - torch.var(returns - values) / (variance + 1e-5))}
