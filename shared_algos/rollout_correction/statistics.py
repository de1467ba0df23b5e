"""Figures of a batch whose bits depend neither on the order of its rows nor on its padding."""

from __future__ import annotations

import torch
from torch import Tensor

from shared_algos.segments import Segments


def total(values: Tensor) -> Tensor:
    """Sum of ``values [L]``, float64: in ascending order and by one thread, so that it is the same for any order."""
    return Segments.from_lengths([len(values)], device=values.device).sum(values.sort().values)[0]


def row_means(values: Tensor, rows: Segments) -> Tensor:
    """The mean of ``values [N]`` over each row, float64 ``[L]``; no row is empty."""
    return rows.sum(values) / rows.lengths


def token_mean(values: Tensor, rows: Segments) -> Tensor:
    """The mean of ``values [N]``, float64 scalar."""
    return total(rows.sum(values)) / rows.num_tokens


def token_std(values: Tensor, rows: Segments) -> Tensor:
    """The standard deviation of ``values [N]`` (n), float64 scalar."""
    return token_mean((values - token_mean(values, rows)).square(), rows).sqrt()


def mean(values: Tensor) -> Tensor:
    """The mean of ``values [L]``, float64 scalar."""
    return total(values.double()) / len(values)


def summary(prefix: str, values: Tensor, ideal: float) -> dict[str, Tensor]:
    """Mean, std (n-1; 0 of one row), extremes and the largest distance from ``ideal`` of one value a row, ``[L]``."""
    deviations = values - mean(values)
    return {
        f"{prefix}_mean": mean(values),
        f"{prefix}_std": (total(deviations.square()) / max(len(values) - 1, 1)).sqrt(),
        f"{prefix}_max": values.max(),
        f"{prefix}_min": values.min(),
        f"{prefix}_max_deviation": (values - ideal).abs().max(),
    }


def exp(exponents: Tensor) -> Tensor:
    """``exp`` of exponents cut to +-20, as verl's, so that no weight is 0 or infinite."""
    return torch.exp(exponents.clamp(-20, 20))
