"""The order of rows, epoch after epoch."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sized
from typing import Any

import torch
from omegaconf import DictConfig
from torch.utils.data import Sampler

from runtime.errors import ConfigError
from runtime.user_code import load_object


class AbstractSampler(Sampler[int], ABC):
    """The base class of samplers of a recipe (``verl.experimental.dataset.sampler``, verl 0.5 to 0.7)."""

    @abstractmethod
    def __init__(self, data_source: Sized, data_config: DictConfig) -> None:
        """data_source: the dataset. data_config: the group ``data``."""


class AbstractCurriculumSampler(AbstractSampler):
    """A sampler that chooses the next prompts by how the last ones went."""

    @abstractmethod
    def update(self, batch: Any) -> None:
        """Told each finished step, a ``DataProto``, before the next prompts are taken."""


def build_sampler(dataset: Any, config: DictConfig, seed: int) -> Sampler[int]:
    """The class ``data.sampler.class_name`` of the file ``data.sampler.class_path``, or an :class:`EpochSampler`.

    Raises ConfigError for a class that is no sampler of verl's, and for a curriculum whose loader reads ahead.
    """
    chosen = config.get("sampler") or {}
    if chosen.get("class_path") is None:
        return EpochSampler(len(dataset), config.shuffle, seed)
    found = load_object(chosen["class_path"], chosen["class_name"], ConfigError)
    if not (isinstance(found, type) and issubclass(found, AbstractSampler)):
        raise ConfigError(
            f"data.sampler: {chosen['class_name']!r} of {chosen['class_path']} is not a subclass of "
            "verl.experimental.dataset.sampler.AbstractSampler (runtime.data.sampler.AbstractSampler)"
        )
    workers = config.get("dataloader_num_workers", 0)
    if issubclass(found, AbstractCurriculumSampler) and workers > 0:
        raise ConfigError(
            f"data.dataloader_num_workers={workers} must be 0 with {found.__qualname__}: rows that are read ahead are "
            "chosen before the sampler is told how the last step went"
        )
    sampler = found(data_source=dataset, data_config=config)
    if not hasattr(sampler, "__len__"):
        raise ConfigError(f"data.sampler: {found.__qualname__} needs __len__, the rows of an epoch")
    return sampler


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
