"""Sums, means and whitening over the mask-1 tokens of a packed column, in float64.

A float64 total of float32 values, cast at the end, does not depend on padding, order or splits in practice (measured:
tests/shared_algos/test_exactness.py). Totals are taken row by row, so that the number of threads does not enter either.
``mask [T]`` may be bool, integer or float; what stands at a mask-0 position, NaN included, never enters.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shared_algos import kernels
from shared_algos.segments import Segments, as_bool


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """``values [T]`` with 0 at mask-0 positions, in value and in gradient."""
    mask = as_bool(mask)
    if values.requires_grad and torch.is_grad_enabled():
        return _Masked.apply(values, mask)
    if kernels.take(values, mask) and values.is_floating_point() and len(values) == len(mask):
        return kernels.masked(kernels.one_row(mask), values, mask, kernels.empty(len(mask), values.dtype))
    return torch.where(mask, values, 0)


class _Masked(torch.autograd.Function):
    """``masked``, which is its own derivative. ``torch.where`` takes ten times as long."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return masked(values, mask)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return masked(gradients[0], *ctx.saved_tensors), None


def all_finite(column: Tensor) -> bool:
    """Whether there is no NaN and no infinity in ``column``, without a temporary."""
    if kernels.take(column):
        return bool(kernels.rows_finite(kernels.one_row(column), column, kernels.empty(1, torch.bool)))
    # None of them leaves a sum finite; a sum that is not can also be one that became too large.
    return bool(column.sum().isfinite()) or bool(column.isfinite().all())


def total(per_row: Tensor) -> Tensor:
    """Total of ``per_row [B]``, float64 scalar, differentiable.

    Added in order: ``Tensor.sum`` shares more than 32768 values among threads, and its bits depend on their number.
    """
    everything = torch.full((1,), len(per_row), device=per_row.device)
    column = per_row.double()[:, None]
    return torch.segment_reduce(column, "sum", lengths=everything, initial=0.0, unsafe=True)[0, 0]


def masked_sum(values: Tensor, mask: Tensor, segments: Segments) -> Tensor:
    """Total over mask-1 tokens, float64 scalar, differentiable."""
    return total(segments.sum(values, mask))


def count(mask: Tensor, segments: Segments) -> Tensor:
    """Number of mask-1 tokens, float64 scalar."""
    return total(segments.sum(as_bool(mask)))


def masked_mean(values: Tensor, mask: Tensor, segments: Segments) -> Tensor:
    """Mean over mask-1 tokens, float64 scalar, differentiable; 0 when there are none."""
    return masked_sum(values, mask, segments) / count(mask, segments).clamp(min=1)


def masked_var(values: Tensor, mask: Tensor, segments: Segments) -> Tensor:
    """Unbiased variance (n-1) over mask-1 tokens, float64 scalar, differentiable; 0 for fewer than two tokens."""
    return _mean_and_var(values, as_bool(mask), segments)[1]


def masked_whiten(values: Tensor, mask: Tensor, segments: Segments) -> Tensor:
    """``values [T]`` shifted and scaled to mean 0 and variance 1 over mask-1 tokens; float64 ``[T]``, 0 elsewhere.

    Follows verl's ``masked_whiten`` (1e-8 is added to the variance), which raises where fewer than two tokens count;
    here a lone token becomes 0.
    """
    mask = as_bool(mask)
    mean, variance = _mean_and_var(values, mask, segments)
    scale = torch.rsqrt(variance + 1e-8)
    if kernels.take(segments.offsets, values, mask):
        out = kernels.empty(segments.num_tokens, torch.float64)
        return kernels.masked_scale(segments.offsets, values, mask, float(mean), float(scale), out)
    return masked((values.double() - mean) * scale, mask)


def _mean_and_var(values: Tensor, mask: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    tokens = count(mask, segments)
    mean = masked_sum(values, mask, segments) / tokens.clamp(min=1)
    if kernels.take(segments.offsets, values, mask):
        out = kernels.empty(segments.num_rows, torch.float64)
        squares = kernels.masked_row_squares(segments.offsets, values, mask, float(mean), out)
    else:
        squares = segments.sum((values.double() - mean).square(), mask)
    return mean, total(squares) / (tokens - 1).clamp(min=1)
