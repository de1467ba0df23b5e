"""The operations of ``DataProto`` that choose, repeat, order and split rows.

All columns of a row always move together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from compat.errors import DataProtoError, UnequalSplitError
from compat.row_choice import DataProtoConfig, Indices, chunk_sizes, row_indices


class RowOperations(ABC):
    """What follows for a batch of B rows from taking rows by index and by range.

    Every batch returned shares ``meta_info`` with this one.
    """

    meta_info: dict[str, Any]

    @abstractmethod
    def __len__(self) -> int:
        """B."""

    @abstractmethod
    def _take(self, rows: Tensor) -> Self:
        """The rows ``rows`` (int64 ``[B']``, in range) of every column."""

    @abstractmethod
    def _between(self, start: int, stop: int) -> Self:
        """Rows ``start`` to ``stop`` (0 <= start <= stop <= B) of every column, as views."""

    @abstractmethod
    def _become(self, other: Self) -> None:
        """Take over the columns of ``other``."""

    def select_idxs(self, idxs: Indices) -> Self:
        """A new batch of the rows ``idxs``: integers ``[B']``, in any order and repeated at will, or a mask ``[B]``."""
        return self._take(row_indices(idxs, len(self)))

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> Self:
        """Rows ``start:end:step`` as Python slices them; views where ``step`` is 1."""
        wanted = range(len(self))[start:end:step]
        if wanted.step == 1:
            return self._between(wanted.start, max(wanted.start, wanted.stop))
        return self._take(torch.tensor(wanted, dtype=torch.int64))

    def reorder(self, indices: Indices) -> None:
        """Put the rows into the order ``indices``, in place: every tensor and array moves with its row."""
        self._become(self.select_idxs(indices))

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> Self:
        """A new batch of ``B * repeat_times`` rows: ``[A, A, B, B]``, or ``[A, B, A, B]`` without ``interleave``."""
        rows = torch.arange(len(self))
        return self._take(rows.repeat_interleave(repeat_times) if interleave else rows.repeat(repeat_times))

    def sample_level_repeat(self, repeat_times: Sequence[int] | np.ndarray | Tensor) -> Self:
        """A new batch in which row ``b`` comes ``repeat_times[b]`` times in a row."""
        if not isinstance(repeat_times, list | tuple | np.ndarray | Tensor):
            raise DataProtoError(
                f"repeat_times must be a list, tuple, array or tensor, got {type(repeat_times).__name__}"
            )
        times = torch.as_tensor(np.array(repeat_times) if isinstance(repeat_times, np.ndarray) else repeat_times).cpu()
        if times.shape != (len(self),):
            raise DataProtoError(
                f"repeat_times must have one entry a row: got {tuple(times.shape)} for {len(self)} rows"
            )
        return self._take(torch.arange(len(self)).repeat_interleave(times.long()))

    def chunk(self, chunks: int) -> list[Self]:
        """Split into ``chunks`` equal parts, in order; the inverse of ``concat``.

        Raises ``UnequalSplitError`` naming both numbers, unless auto-padding is on: then the parts may differ in size.
        """
        sizes = chunk_sizes(len(self), chunks, self.is_padding_enabled())
        ends = np.cumsum([0, *sizes]).tolist()
        return [self._between(start, stop) for start, stop in pairwise(ends)]

    def split(self, split_size: int) -> list[Self]:
        """Split into parts of ``split_size`` rows, the last one possibly smaller."""
        if split_size < 1:
            raise UnequalSplitError(f"cannot split {len(self)} rows into parts of {split_size}; ask for at least 1")
        return [self._between(row, min(row + split_size, len(self))) for row in range(0, len(self), split_size)]

    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int,
        seed: int | None = None,
        dataloader_kwargs: dict[str, Any] | None = None,
    ) -> Iterator[Self]:
        """Yield ``B / mini_batch_size`` mini-batches an epoch, shuffled as ``dataloader_kwargs`` say.

        ``seed`` and ``shuffle=True`` give the order that verl gives. Raises ``UnequalSplitError`` naming both sizes.
        """
        if mini_batch_size < 1 or len(self) % mini_batch_size:
            raise UnequalSplitError(
                f"{len(self)} rows do not divide into mini-batches of {mini_batch_size}; change one of the two numbers"
            )
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        loader = DataLoader(
            cast("Dataset[int]", range(len(self))),
            batch_size=mini_batch_size,
            collate_fn=self.select_idxs,
            generator=generator,
            **(dataloader_kwargs or {}),
        )
        return (mini_batch for _ in range(epochs) for mini_batch in loader)

    def is_padding_enabled(self) -> bool:
        """Whether auto-padding is on, for this batch or for the process."""
        return bool(self.meta_info.get(DataProtoConfig.auto_padding_key, False)) or DataProtoConfig.auto_padding

    def padding(self, padding_size: int, padding_candidate: str = "") -> None:
        """Append ``padding_size`` copies of the first row (``padding_candidate="first"``) or of the last, in place."""
        if padding_size == 0:
            return
        if len(self) == 0:
            raise DataProtoError(f"cannot pad an empty batch with {padding_size} rows: it has no row to repeat")
        candidate = 0 if padding_candidate == "first" else len(self) - 1
        self._become(self._take(torch.cat([torch.arange(len(self)), torch.full((padding_size,), candidate)])))
