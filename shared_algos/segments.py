"""The packed layout: rows of different lengths, one after another, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


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
        return torch.repeat_interleave(
            torch.arange(self.num_rows, device=self.offsets.device), self.lengths, output_size=self.num_tokens
        )

    @cached_property
    def positions(self) -> Tensor:
        """The place of each token within its row, int64 ``[T]``."""
        return torch.arange(self.num_tokens, device=self.offsets.device) - self.offsets[:-1][self.rows]

    def sum(self, values: Tensor) -> Tensor:
        """Row totals in float64 ``[B]`` of ``values [T]``, differentiable.

        Tokens are added in order and by one thread a row (an ``index_add_`` would add in any order on a GPU), so a
        row's bits depend neither on its neighbours nor on the number of threads.
        """
        self.check(values)
        return torch.segment_reduce(values.double(), "sum", offsets=self.offsets, initial=0.0)

    def spread(self, per_row: Tensor) -> Tensor:
        """Repeat ``per_row [B]`` over each row's tokens: ``[T]``."""
        return per_row[self.rows]

    def following(self, values: Tensor) -> Tensor:
        """Each token's successor within its row, 0 after a row's last token: ``[T]`` of ``values [T]``."""
        self.check(values)
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
