"""The order of rows, epoch after epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class EpochSampler(Sampler[int]):
    """Row positions in order, or permuted by a draw from (seed, epoch).

    An epoch is over when an iterator has given its last row. ``torchdata``'s own sampler draws from one generator
    instead, so that its order depends on how many iterators were made: one more with worker processes than without.
    """

    def __init__(self, rows: int, shuffle: bool, seed: int) -> None:
        self.rows = rows
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[int]:
        return _EpochIterator(self)

    def order(self, epoch: int) -> list[int]:
        """The row positions of ``epoch``, all of them."""
        if not self.shuffle:
            return list(range(self.rows))
        # Hashed, because seed + epoch would meet the next seed, and a CPU generator reads only 32 bits of its seed.
        digest = hashlib.sha256(f"{self.seed}/{epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
        return torch.randperm(self.rows, generator=generator).tolist()


class _EpochIterator(Iterator[int]):
    """One epoch of a sampler; the state is what ``StatefulDataLoader`` saves."""

    def __init__(self, sampler: EpochSampler) -> None:
        self._sampler = sampler
        self._start(sampler.epoch, 0)

    def __next__(self) -> int:
        if self._given == len(self._order):
            self._sampler.epoch = self._epoch + 1
            self._over = True
            raise StopIteration
        self._given += 1
        return self._order[self._given - 1]

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "given": self._given, "over": self._over}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._start(state["epoch"], state["given"])
        self._over = bool(state["over"])
        self._sampler.epoch = self._epoch + self._over

    def _start(self, epoch: int, given: int) -> None:
        self._epoch = epoch
        self._order = self._sampler.order(epoch)
        self._given = given
        self._over = False
