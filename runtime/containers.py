"""What a worker group asks of a batch container, so that ``runtime`` need not know any.

Each container (``DataProto``, V1's key metadata) registers itself on these functions. Driver side: ``select_rows``,
and the methods ``chunk(n)`` and ``concat(parts)``. Worker side: ``read_batch`` and ``answer``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any, Protocol, Self

from torch import Tensor

from runtime.trajectories import TrajectoryBatch


class Container(Protocol):
    """A batch of B rows that can be cut for ranks and put together again."""

    def __len__(self) -> int: ...

    def chunk(self, chunks: int) -> Sequence[Any]:
        """Cut into ``chunks`` shards of equal size, in row order."""
        ...

    @staticmethod
    def concat(parts: Sequence[Any]) -> Self:
        """Put shards, or what ``answer`` made of them, together in order."""
        ...


def _unknown(container: object) -> TypeError:
    return TypeError(f"{type(container).__name__} is not registered with runtime.containers")


@singledispatch
def select_rows(container: Any, rows: Tensor) -> Any:
    """The rows ``rows`` int64 ``[B']`` of a container, in that order."""
    raise _unknown(container)


@singledispatch
def read_batch(shard: Any, fields: Sequence[str]) -> TrajectoryBatch:
    """Materialise ``fields`` of a shard on the packed layout; a missing field or row is an error, never left out."""
    raise _unknown(shard)


@singledispatch
def answer(shard: Any, batch: TrajectoryBatch, columns: Mapping[str, Tensor]) -> Any:
    """Give packed ``columns``, computed from ``batch``, back in the shard's own kind."""
    raise _unknown(shard)
