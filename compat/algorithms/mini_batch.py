"""The mini-batch whose loss is being computed, known to whatever a function of a recipe calls."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from shared_algos.aggregation import Denominators
from shared_algos.policy_losses import PolicyLossConfig, Selection

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class ActiveMiniBatch:
    """What a loss of a recipe stands in: one micro-batch of a mini-batch over all ranks."""

    function: str
    """The loss, for messages."""
    denominators: Denominators
    config: PolicyLossConfig
    divided: bool = False
    """Whether the loss was divided by the whole mini-batch's counts, or is a plain sum: its parts then add up."""
    generator: torch.Generator | None = None
    """Given while a built-in loss that the loss calls looks at the whole mini-batch: what its draws come from."""
    selection: Selection | None = None
    """What such a built-in loss decided then, of these rows: columns ``[B*R]``."""
    selected: Selection | None = None
    """What such a built-in loss decides now."""

    @property
    def tokens(self) -> float:
        """Mask-1 tokens of the mini-batch, at least 1."""
        return _at_least_one(self.denominators.tokens)

    @property
    def sequences(self) -> float:
        """Rows of the mini-batch with a mask-1 token, at least 1."""
        return _at_least_one(self.denominators.sequences)

    @property
    def info(self) -> Mapping[str, float]:
        """verl's ``global_batch_info``; a loss that reads its counts is taken to divide by them."""
        return _GlobalBatchInfo(self)


class _GlobalBatchInfo(Mapping[str, float]):
    """Not a dict: ``**`` copies one without asking for its items, and then nobody would know who divides."""

    def __init__(self, mini_batch: ActiveMiniBatch) -> None:
        self._mini_batch = mini_batch
        self._values = {
            # The engine multiplies by the number of ranks, so that code which does so itself must find 1.
            "dp_size": 1,
            "batch_num_tokens": int(mini_batch.tokens),
            "global_batch_size": int(mini_batch.sequences),
            "loss_scale_factor": float(mini_batch.denominators.horizon),
        }

    def __getitem__(self, key: str) -> float:
        value = self._values[key]
        if key in ("batch_num_tokens", "global_batch_size"):
            self._mini_batch.divided = True
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


_ACTIVE: ContextVar[ActiveMiniBatch | None] = ContextVar("active_mini_batch", default=None)


def active_mini_batch() -> ActiveMiniBatch | None:
    """The mini-batch whose loss is being computed; ``None`` outside of a loss of a recipe."""
    return _ACTIVE.get()


@contextmanager
def activate(mini_batch: ActiveMiniBatch) -> Iterator[None]:
    """Make ``mini_batch`` the active one inside the block."""
    token = _ACTIVE.set(mini_batch)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


_warned: set[tuple[str, str]] = set()


def warn_once(function: str, message: str) -> None:
    """Log ``message`` about ``function`` (a loss), once a process and message."""
    if (function, message) not in _warned:
        _warned.add((function, message))
        logger.warning("policy loss %s %s", function, message)


def _at_least_one(count: Tensor | float) -> float:
    """A mini-batch of padding only counts 0, and 0/1 is the 0 that it should add."""
    return max(float(count), 1.0)
