"""Packed columns without their masked tokens, and back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from shared_algos import kernels
from shared_algos.segments import Segments


@dataclass(frozen=True, eq=False)
class KeptTokens:
    """The N mask-1 tokens of L rows of a batch, packed without the others, in the order in which the rows are given."""

    whole: Segments
    """T tokens in B rows."""
    mask: Tensor
    """bool ``[T]``"""
    rows: Tensor
    """int64 ``[L]``, each of them once, each with a mask-1 token."""
    segments: Segments
    """N tokens in L rows."""

    @classmethod
    def of(cls, whole: Segments, mask: Tensor, rows: Tensor) -> KeptTokens:
        """Keep the mask-1 tokens of ``rows``. Raises ``ValueError`` where a row has none."""
        lengths = whole.sum(mask)[rows].long()
        if not bool(lengths.all()):
            raise ValueError(f"row {int(rows[lengths == 0][0])} has no mask-1 token to keep")
        return cls(whole, mask, rows, Segments.from_lengths(lengths))

    @cached_property
    def tokens(self) -> Tensor:
        """int64 ``[N]``: where each token stands in the T tokens of the batch."""
        present = self.whole.token_indices(self.rows)
        return present[self.mask[present]]

    def gather(self, column: Tensor) -> Tensor:
        """``column [T]`` at the kept tokens, float64 ``[N]``."""
        self.whole.check(column)
        if kernels.take(*self._layout, column):
            return kernels.gather(*self._layout, column, self._empty())
        return column[self.tokens].double()

    def gather_sums(self, column: Tensor) -> Tensor:
        """``column [T]`` moved to kept tokens, float64 ``[N]``: the total of each of the L rows does not change.

        What stands at a mask-0 token is added to the nearest mask-1 token before it, or to the row's first where there
        is none.
        """
        self.whole.check(column)
        if kernels.take(*self._layout, column):
            return kernels.gather_sums(*self._layout, column, self._empty())
        present = self.whole.token_indices(self.rows)
        whole_rows = Segments.from_lengths(self.whole.lengths[self.rows])
        nearest = self.mask[present].cumsum(0) - 1
        target = torch.maximum(nearest, self.segments.offsets[:-1][whole_rows.rows])
        return Segments.from_lengths(target.bincount(minlength=self.segments.num_tokens)).sum(column[present])

    def scatter(self, column: Tensor, dtype: torch.dtype) -> Tensor:
        """``column [N]`` back among the T tokens, in ``dtype``, 0 elsewhere."""
        self.segments.check(column)
        if kernels.take(*self._layout, column) and dtype in kernels.DTYPES:
            spread = kernels.empty(self.whole.num_tokens, dtype)
            if len(self.rows) < self.whole.num_rows:
                spread.zero_()  # the loop writes the rows that it is given
            return kernels.scatter(*self._layout, column, spread)
        spread = torch.zeros(self.whole.num_tokens, dtype=dtype, device=column.device)
        spread[self.tokens] = column.to(dtype)
        return spread

    @property
    def _layout(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.segments.offsets, self.whole.offsets, self.rows, self.mask

    def _empty(self) -> Tensor:
        return kernels.empty(self.segments.num_tokens, torch.float64)
