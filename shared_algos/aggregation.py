"""From token losses to one scalar, with denominators that are counted once for a whole mini-batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shared_algos.errors import AlgorithmError
from shared_algos.reductions import masked_sum, total
from shared_algos.segments import Segments

AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


@dataclass(frozen=True, eq=False)
class Denominators:
    """What a loss is divided by, counted over the whole mini-batch on all ranks, after the last edit of the mask."""

    tokens: Tensor | float
    """Mask-1 tokens, float64 scalar."""
    sequences: Tensor | float
    """Rows with a mask-1 token, float64 scalar."""
    horizon: Tensor | float
    """Tokens: ``loss_scale_factor`` where it is set, else the configured maximum response length, never a width."""

    @classmethod
    def count(cls, mask: Tensor, segments: Segments, horizon: float) -> Denominators:
        """Count the rows at hand. Over several ranks, add ``tokens`` and ``sequences`` up and leave ``horizon``."""
        per_row = segments.sum(mask.bool())
        return cls(total(per_row), total(per_row > 0), horizon)


@dataclass(frozen=True, eq=False)
class LossOutput:
    """A loss and its metrics; both add up over micro-batches and ranks to the value of the whole mini-batch.

    The sum is reported by ``to_float32``, which does not tell how the mini-batch was split.
    """

    loss: Tensor
    """Float64 scalar with gradient."""
    metrics: dict[str, Tensor]
    """Float64 scalars without gradient, each a sum over mask-1 tokens divided by ``denominators.tokens``."""


def aggregate(token_loss: Tensor, mask: Tensor, segments: Segments, mode: str, denominators: Denominators) -> Tensor:
    """The part that the rows at hand add to the loss of their mini-batch, float64 scalar.

    token_loss, mask: ``[T]``. mode: one of ``AGGREGATIONS``, meant as in verl's ``agg_loss``, without its factor
    ``dp_size`` (a matter of how gradients are averaged, so the engine's). Nothing to count gives 0.
    Raises ``AlgorithmError`` for an unknown mode.
    """
    check_aggregation(mode)
    if mode == "seq-mean-token-mean":
        return mean_over_rows(row_means(token_loss, mask, segments), denominators)
    rows = segments.sum(token_loss, mask)
    if mode == "token-sum":
        return total(rows)
    if mode == "token-mean":
        return total(rows) / _at_least_one(denominators.tokens)
    mean = mean_over_rows(rows, denominators)
    return mean / denominators.horizon if mode == "seq-mean-token-sum-norm" else mean


def mean_over_rows(row_loss: Tensor, denominators: Denominators) -> Tensor:
    """The part that the rows at hand add to the mean of ``row_loss [B]`` over the mini-batch's rows that count.

    Rows without a mask-1 token must have 0.
    """
    return total(row_loss) / _at_least_one(denominators.sequences)


def row_means(values: Tensor, mask: Tensor, segments: Segments) -> Tensor:
    """The mean of ``values [T]`` over each row's mask-1 tokens, float64 ``[B]``, differentiable; 0 where none is."""
    return segments.sum(values, mask) / segments.sum(mask.bool()).clamp(min=1)


def mean_metric(values: Tensor, mask: Tensor, segments: Segments, denominators: Denominators) -> Tensor:
    """The part that the rows at hand add to the mean of ``values [T]`` over the mini-batch's mask-1 tokens."""
    return masked_sum(values.detach(), mask, segments) / _at_least_one(denominators.tokens)


def to_float32(totals: Tensor) -> Tensor:
    """Losses and metrics whose parts are added up, float64 of any shape, as they are reported; without gradient.

    Where few tokens count, their mean is often exactly half-way between two float32, and then the last bit of float64,
    which order and split decide, would decide the rounding. To 40 bits first, and it is half-way again for all.
    """
    mantissas, exponents = torch.frexp(totals.detach())
    return torch.ldexp(torch.round(mantissas * 2**40) / 2**40, exponents.double()).float()


def check_aggregation(mode: str) -> None:
    """Raise ``AlgorithmError`` unless ``mode`` is one of ``AGGREGATIONS``."""
    if mode not in AGGREGATIONS:
        raise AlgorithmError(f"unknown loss_agg_mode {mode!r}; known are {', '.join(AGGREGATIONS)}")


def _at_least_one(count: Tensor | float) -> Tensor | float:
    """A mini-batch of padding only counts 0 tokens; its sums are 0, and 0/1 is the 0 that it should add."""
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1.0)
