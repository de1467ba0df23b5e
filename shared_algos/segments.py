"""The packed layout: rows of different lengths, one after another, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from shared_algos import kernels


@dataclass(frozen=True, eq=False)
class Segments:
    """Where each of B rows begins and ends in a packed column of T values.

    offsets: int64 ``[B+1]``, starting at 0 and never decreasing; row ``b`` is ``values[offsets[b]:offsets[b+1]]``.
    It is what ``torch.nested`` calls ``offsets()``, so a jagged tensor is handed over without a copy.
    """

    offsets: Tensor

    def __post_init__(self) -> None:
        offsets = self.offsets
        if offsets.dim() != 1 or offsets.numel() == 0 or offsets.dtype != torch.int64:
            raise ValueError(f"offsets must be int64 [B+1], got {offsets.dtype} {tuple(offsets.shape)}")
        if int(offsets[0]) != 0 or bool((offsets.diff() < 0).any()):
            raise ValueError(f"offsets must start at 0 and never decrease, got {offsets.tolist()}")

    @classmethod
    def from_lengths(cls, lengths: Sequence[int] | Tensor, device: torch.device | str | None = None) -> Segments:
        """Build from row lengths ``[B]``."""
        lengths = torch.as_tensor(lengths, dtype=torch.int64, device=device)
        if bool((lengths < 0).any()):
            raise ValueError(f"row lengths must not be negative, got {lengths.tolist()}")
        return cls(torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))

    @property
    def num_rows(self) -> int:
        """B."""
        return self.offsets.numel() - 1

    @cached_property
    def num_tokens(self) -> int:
        """T."""
        return int(self.offsets[-1])

    @cached_property
    def lengths(self) -> Tensor:
        """Tokens of each row, int64 ``[B]``."""
        return self.offsets.diff()

    @cached_property
    def rows(self) -> Tensor:
        """The row of each token, int64 ``[T]``."""
        return torch.repeat_interleave(self.lengths, output_size=self.num_tokens)

    @cached_property
    def positions(self) -> Tensor:
        """The place of each token within its row, int64 ``[T]``."""
        return torch.arange(self.num_tokens, device=self.offsets.device) - self.spread(self.offsets[:-1])

    def sum(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Row totals in float64 ``[B]`` of ``values [T]``, of those at mask-1 tokens where ``mask [T]`` is given.

        Differentiable. Tokens are added in order and by one thread a row (an ``index_add_`` would add in any order on a
        GPU), so a row's bits depend neither on its neighbours nor on the number of threads.
        """
        self.check(values)
        if mask is not None:
            self.check(mask)
            mask = as_bool(mask)
        if values.requires_grad and torch.is_grad_enabled():
            return _Sum.apply(values, mask, self)
        return self._sum(values, mask)

    def _sum(self, values: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None and values.dtype == torch.bool:
            values, mask = values & mask, None
        columns = (self.offsets, values) if mask is None else (self.offsets, values, mask)
        if kernels.take(*columns):
            out = kernels.empty(self.num_rows, torch.float64)
            if mask is not None:
                return kernels.masked_row_sums(*columns, out)
            return (kernels.row_counts if values.dtype == torch.bool else kernels.row_sums)(*columns, out)
        kept = values.double() if mask is None else torch.where(mask, values.double(), 0)
        # With a second dimension, because without one CUDA adds by a tree whose shape depends on where a row begins.
        return torch.segment_reduce(kept[:, None], "sum", offsets=self.offsets, initial=0.0)[:, 0]

    def spread(self, per_row: Tensor, mask: Tensor | None = None) -> Tensor:
        """Repeat ``per_row [B]`` over each row's tokens: ``[T]``, 0 at mask-0 tokens where ``mask [T]`` is given.

        Differentiable: the gradient of a row is the sum over its tokens, added as ``sum`` adds.
        """
        if per_row.shape[0] != self.num_rows:
            raise ValueError(f"a column of rows has {per_row.shape[0]} values where its segments have {self.num_rows}")
        if mask is not None:
            self.check(mask)
            mask = as_bool(mask)
        if per_row.requires_grad and torch.is_grad_enabled():
            return _Spread.apply(per_row, mask, self)
        return self._spread(per_row, mask)

    def _spread(self, per_row: Tensor, mask: Tensor | None) -> Tensor:
        columns = (self.offsets, per_row) if mask is None else (self.offsets, per_row, mask)
        if kernels.take(*columns):
            out = kernels.empty(self.num_tokens, per_row.dtype)
            return (kernels.spread if mask is None else kernels.masked_spread)(*columns, out)
        everywhere = per_row[self.rows]
        return everywhere if mask is None else torch.where(mask, everywhere, 0)

    def following(self, values: Tensor) -> Tensor:
        """Each token's successor within its row, 0 after a row's last token: ``[T]`` of ``values [T]``."""
        self.check(values)
        if kernels.take(self.offsets, values):
            return kernels.following(self.offsets, values, kernels.empty(self.num_tokens, values.dtype))
        shifted = torch.cat([values[1:], values.new_zeros(min(1, values.numel()))])
        return torch.where(self.positions == self.lengths[self.rows] - 1, 0, shifted)

    def token_indices(self, rows: Tensor) -> Tensor:
        """Packed indices ``[T']`` of the tokens of ``rows [B']``, in the order the rows are given."""
        chosen = Segments.from_lengths(self.lengths[rows])
        return chosen.positions + self.offsets[:-1][rows][chosen.rows]

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """Views of ``values [T, ...]``, one a row."""
        self.check(values)
        return values.split(self.lengths.tolist())

    def check(self, values: Tensor) -> None:
        """Raise ``ValueError`` unless ``values`` has T tokens on dim 0."""
        if values.shape[0] != self.num_tokens:
            raise ValueError(f"a packed column has {values.shape[0]} values where its segments have {self.num_tokens}")


def as_bool(mask: Tensor) -> Tensor:
    """``mask [N]`` as bool ``[N]``; a bool mask is returned as it is."""
    if mask.dtype == torch.bool or not kernels.take(mask):
        return mask.bool()
    return kernels.nonzero(kernels.one_row(mask), mask, kernels.empty(len(mask), torch.bool))


class _Sum(torch.autograd.Function):
    """``Segments.sum``; its derivative is ``Segments.spread``."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, mask: Tensor | None, segments: Segments) -> Tensor:
        ctx.segments, ctx.dtype = segments, values.dtype
        ctx.save_for_backward(mask)
        return segments.sum(values, mask)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.segments.spread(gradients[0].to(ctx.dtype), *ctx.saved_tensors), None, None


class _Spread(torch.autograd.Function):
    """``Segments.spread``; its derivative is ``Segments.sum``."""

    @staticmethod
    def forward(ctx: Any, per_row: Tensor, mask: Tensor | None, segments: Segments) -> Tensor:
        ctx.segments, ctx.dtype = segments, per_row.dtype
        ctx.save_for_backward(mask)
        return segments.spread(per_row, mask)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.segments.sum(gradients[0], *ctx.saved_tensors).to(ctx.dtype), None, None
