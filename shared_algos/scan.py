"""The segmented reverse scan behind discounted returns and GAE."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from shared_algos import kernels
from shared_algos.segments import Segments


def reverse_scan(deltas: Tensor, segments: Segments, decay: float) -> Tensor:
    """``out[t] = deltas[t] + decay * out[t + 1]`` within each row, nothing entering from beyond its end.

    deltas: ``[T]``. Returns float64 ``[T]``. A row's bits are those of the recurrence written out for that row alone.
    """
    segments.check(deltas)
    if kernels.take(segments.offsets, deltas):
        out = kernels.empty(len(deltas), torch.float64)
        return kernels.reverse_scan(segments.offsets, deltas, float(decay), out)
    return _sweep(deltas.double(), segments, decay)


def gae_scan(rewards: Tensor, values: Tensor, segments: Segments, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Advantages and returns of GAE, float64 ``[T]`` each, of ``rewards`` and ``values``, ``[T]``.

    Advantages are the ``reverse_scan``, with decay ``gamma * lam``, of the TD errors
    ``rewards[t] + gamma * values[t + 1] - values[t]``, the value beyond the end of a row being 0; returns are
    advantages plus values.
    """
    segments.check(rewards)
    segments.check(values)
    decay = gamma * lam
    if kernels.take(segments.offsets, rewards, values):
        out = kernels.empty(2 * len(values), torch.float64).view(2, -1)
        advantages, returns = kernels.gae_scan(segments.offsets, rewards, values, float(gamma), float(decay), out)
        return advantages, returns
    values = values.double()
    errors = rewards.double() + gamma * segments.following(values) - values
    advantages = _sweep(errors, segments, decay)
    return advantages, advantages + values


def _sweep(deltas: Tensor, segments: Segments, decay: float) -> Tensor:
    """``reverse_scan`` as a loop over the longest row's tokens.

    Tokens are laid out lane by lane, the last token of every row first and longer rows first, so that step k is a
    contiguous slice over all rows with more than k tokens.
    """
    place, lanes = _lanes(segments)
    out = torch.empty_like(deltas)
    out[place] = deltas + 0.0  # a row's last token has decay * 0 added too, which makes 0 of -0
    begin = 0
    for width, following in pairwise(lanes):
        previous, begin = begin, begin + width
        # Not add(alpha=decay): it may fuse multiply and add in vector lanes but not in the tail, and bits would move.
        out[begin : begin + following] += out[previous : previous + following] * decay
    return out[place]


def _lanes(segments: Segments) -> tuple[Tensor, list[int]]:
    """The lane-major place of each token, int64 ``[T]``, and the number of rows that reach each lane."""
    lengths = segments.lengths
    rank = lengths.argsort(descending=True, stable=True).argsort()
    widths = segments.num_rows - lengths.bincount().cumsum(0)[:-1] if segments.num_tokens else lengths.new_zeros(0)
    starts = widths.cumsum(0) - widths
    from_end = lengths[segments.rows] - 1 - segments.positions
    return starts[from_end] + rank[segments.rows], widths.tolist()
