"""Sums, means and whitening over the mask-1 tokens of a packed column, in float64.

A float64 total of float32 values, cast at the end, does not depend on padding, order or splits in practice (measured:
tests/shared_algos/test_exactness.py). Totals are taken row by row, so that the number of threads does not enter either.
``mask [T]`` may be bool, integer or float; what stands at a mask-0 position, NaN included, never enters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shared_algos.segments import Segments


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """``values [T]`` with 0 at mask-0 positions, in value and in gradient."""
    return torch.where(mask.bool(), values, 0)


def masked_sum(values: Tensor, mask: Tensor, segments: Segments) -> Tensor:
    """Total over mask-1 tokens, float64 scalar, differentiable."""
    return segments.sum(masked(values, mask)).sum()


def count(mask: Tensor, segments: Segments) -> Tensor:
    """Number of mask-1 tokens, float64 scalar."""
    return segments.sum(mask.bool()).sum()


def masked_mean(values: Tensor, mask: Tensor, segments: Segments) -> Tensor:
    """Mean over mask-1 tokens, float64 scalar; 0 when there are none."""
    return masked_sum(values, mask, segments) / count(mask, segments).clamp(min=1)


def masked_var(values: Tensor, mask: Tensor, segments: Segments) -> Tensor:
    """Unbiased variance (n-1) over mask-1 tokens, float64 scalar; 0 for fewer than two tokens."""
    deviations = values.double() - masked_mean(values, mask, segments)
    return masked_sum(deviations.square(), mask, segments) / (count(mask, segments) - 1).clamp(min=1)


def masked_whiten(values: Tensor, mask: Tensor, segments: Segments) -> Tensor:
    """``values [T]`` shifted and scaled to mean 0 and variance 1 over mask-1 tokens; float64 ``[T]``, 0 elsewhere.

    Follows verl's ``masked_whiten`` (1e-8 is added to the variance), which raises where fewer than two tokens count;
    here a lone token becomes 0.
    """
    scale = torch.rsqrt(masked_var(values, mask, segments) + 1e-8)
    return masked((values.double() - masked_mean(values, mask, segments)) * scale, mask)
