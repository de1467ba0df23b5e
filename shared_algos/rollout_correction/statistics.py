"""Figures of a batch whose bits depend neither on the order of its rows nor on its padding."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shared_algos.segments import Segments


def mean(values: Tensor) -> float:
    """The mean of ``values [L]``, one a row: of their exact sum, which is the same in any order."""
    return math.fsum(values.tolist()) / len(values)


def std(values: Tensor) -> float:
    """The standard deviation (n-1) of ``values [L]``, one a row; 0 of one row."""
    squares = (values - mean(values)).square().tolist()
    return math.sqrt(math.fsum(squares) / max(len(squares) - 1, 1))


def row_means(values: Tensor, rows: Segments) -> Tensor:
    """The mean of ``values [N]`` over each row, float64 ``[L]``; no row is empty."""
    return rows.sum(values) / rows.lengths


def token_mean(values: Tensor, rows: Segments) -> float:
    """The mean of ``values [N]``, one a token."""
    return math.fsum(rows.sum(values).tolist()) / rows.num_tokens


def token_std(values: Tensor, rows: Segments) -> float:
    """The standard deviation (n) of ``values [N]``, one a token."""
    return math.sqrt(token_mean((values - token_mean(values, rows)).square(), rows))


def extremes(prefix: str, values: Tensor) -> dict[str, float]:
    """The largest and the smallest value."""
    return {f"{prefix}_max": float(values.max()), f"{prefix}_min": float(values.min())}


def summary(prefix: str, values: Tensor, ideal: float) -> dict[str, float]:
    """Mean, std, extremes and the largest distance from ``ideal`` of ``values [L]``, one a row."""
    return {
        f"{prefix}_mean": mean(values),
        f"{prefix}_std": std(values),
        f"{prefix}_max_deviation": float((values - ideal).abs().max()),
        **extremes(prefix, values),
    }


def exp(exponents: Tensor) -> Tensor:
    """``exp`` of exponents cut to +-20, as verl's, so that no weight is 0 or infinite."""
    return torch.exp(exponents.clamp(-20, 20))
