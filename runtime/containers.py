"""What a worker group asks of a batch container, so that ``runtime`` need not know any.

A container (``DataProto``, V1's key metadata) offers ``chunk(n)`` and ``concat(parts)`` and registers itself on the
functions below. Driver side: ``shard``, ``concat``, ``select_rows``. Worker side: ``read_batch`` and ``answer``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from torch import Tensor

from runtime.trajectories import TrajectoryBatch


def _unknown(container: object) -> TypeError:
    return TypeError(f"{type(container).__name__} is not registered with runtime.containers")


@singledispatch
def shard(container: Any, count: int) -> Sequence[Any]:
    """Cut a container into ``count`` shards of equal size, in row order, each fit to be sent to a worker."""
    return container.chunk(count)


def concat(parts: Sequence[Any]) -> Any:
    """Put what ``answer`` made of each shard together, in order."""
    return concat_with(parts[0], parts)


@singledispatch
def concat_with(first: Any, parts: Sequence[Any]) -> Any:
    """``concat`` of ``parts`` whose first one is ``first``: by their own ``concat``, unless registered otherwise."""
    return type(first).concat(list(parts))


@singledispatch
def select_rows(container: Any, rows: Tensor) -> Any:  # noqa: ARG001
    """The rows ``rows`` int64 ``[B']`` of a container, in that order."""
    raise _unknown(container)


@singledispatch
def read_batch(shard: Any, fields: Sequence[str]) -> TrajectoryBatch:  # noqa: ARG001
    """Materialise ``fields`` of a shard on the packed layout; a missing field or row is an error, never left out."""
    raise _unknown(shard)


@singledispatch
def answer(
    shard: Any,
    batch: TrajectoryBatch,  # noqa: ARG001
    columns: Mapping[str, Tensor],  # noqa: ARG001
    objects: Mapping[str, np.ndarray] | None = None,  # noqa: ARG001
) -> Any:
    """Give packed ``columns`` and ``objects [B]``, computed from ``batch``, back in the shard's own kind."""
    raise _unknown(shard)
