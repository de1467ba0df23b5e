"""Rows of a packed batch as the padded tensors that functions with verl's signatures work on, and back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from compat.padding import pad_right
from shared_algos.segments import Segments


@dataclass(frozen=True, eq=False)
class PaddedRows:
    """B' rows of a packed batch side by side, ``[B', R]``; R is the length of the longest of them, at least 1.

    Only rows that take part are shown to functions of recipes: they neither know of padding rows nor guard against
    what stands in rejected ones.
    """

    rows: Tensor
    """int64 ``[B']``: which rows of the batch, in the order shown."""
    whole: Segments
    """B rows in T tokens: the batch."""

    @cached_property
    def segments(self) -> Segments:
        """B' rows in T' tokens."""
        return Segments.from_lengths(self.whole.lengths[self.rows])

    @cached_property
    def tokens(self) -> Tensor:
        """int64 ``[T']``: where the tokens of the rows lie in the batch."""
        return self.whole.token_indices(self.rows)

    @cached_property
    def width(self) -> int:
        """R."""
        return max([1, *self.segments.lengths.tolist()])

    def pad(self, column: Tensor) -> Tensor:
        """``column [T]`` as ``[B', R]``, 0 behind each row's last token; differentiable."""
        return pad_right(column[self.tokens], self.segments, self.width)

    def pack(self, padded: Tensor) -> Tensor:
        """``padded [B', R]`` as ``[T]``, 0 at the tokens of rows that are not shown."""
        column = padded.new_zeros(self.whole.num_tokens)
        column[self.tokens] = padded[self.segments.rows, self.segments.positions]
        return column


def as_packed(padded: Tensor) -> tuple[Segments, Tensor]:
    """``padded [B, R]`` as a packed column ``[B*R]`` of B rows that are R long each.

    What the core computes does not depend on mask-0 tokens at the end of a row, so that padding may stay where it is.
    """
    rows, width = padded.shape
    return Segments.from_lengths([width] * rows, device=padded.device), padded.reshape(rows * width)
