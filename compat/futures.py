"""``DataProtoFuture``: the result of a worker-group call that has not been fetched yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any


@dataclass
class DataProtoFuture:
    """What a non-blocking worker-group method returns, so that the driver can start the next call before this one ends.

    It may be passed to another worker-group method as it is; nothing else can be done with it but ``chunk`` and
    ``get``.
    """

    collect_fn: Callable[[list[Any]], Any]
    """Joins the parts, one a rank, into one container."""
    futures: list[Any]
    """Ray object references, one a rank, in rank order."""
    dispatch_fn: Callable[[Any], Any] | None = None
    """Cuts this future's share out of the joined container; ``None`` keeps all of it."""

    @staticmethod
    def concat(data: list[Any]) -> DataProtoFuture:
        """A future of the concatenation of the containers behind ``data``, a list of Ray object references."""
        return DataProtoFuture(collect_fn=concat_parts, futures=data)

    def chunk(self, chunks: int) -> list[DataProtoFuture]:
        """``chunks`` futures, the i-th of which gets the i-th chunk of the joined container. Nothing is fetched yet."""
        return [
            DataProtoFuture(self.collect_fn, self.futures, partial(self._share, part=part, chunks=chunks))
            for part in range(chunks)
        ]

    def _share(self, joined: Any, part: int, chunks: int) -> Any:
        own = joined if self.dispatch_fn is None else self.dispatch_fn(joined)
        return own.chunk(chunks)[part]

    def get(self) -> Any:
        """Wait for all ranks, join their parts and cut out this share. A worker's error arrives as itself."""
        from runtime.workers.group import get

        joined = self.collect_fn(get(self.futures, "the group whose call was not waited for"))
        return joined if self.dispatch_fn is None else self.dispatch_fn(joined)


def concat_parts(parts: Sequence[Any]) -> Any:
    """Join containers of one kind on dim 0: a ``TensorDict`` by columns, anything else by its own ``concat``."""
    from tensordict import TensorDict

    from compat.columns import concat_rows

    return concat_rows(parts) if isinstance(parts[0], TensorDict) else type(parts[0]).concat(parts)
