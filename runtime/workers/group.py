"""One Ray actor a rank, driven together: cut a batch, call every rank, put the answers together."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any, Self

import ray
import torch
from ray.exceptions import RayActorError
from torch import Tensor

from runtime import containers
from runtime.errors import BatchSizeError, ResourceError, VerliftError


class WorkerGroup:
    """Actors of ranks 0..world_size-1 of one ``torch.distributed`` group.

    It dispatches any container that is registered with ``runtime.containers``. name: what messages call it.
    """

    def __init__(self, name: str, actors: Sequence[Any]) -> None:
        self.name, self.actors, self.world_size = name, list(actors), len(actors)

    @classmethod
    def start(cls, worker_class: type, options: Sequence[Mapping[str, Any]], **init_kwargs: Any) -> Self:
        """Start one actor of ``worker_class`` a rank. options: the Ray options of each rank's actor."""
        remote: Any = ray.remote(worker_class)
        actors = [
            remote.options(**of_rank).remote(rank=rank, world_size=len(options), **init_kwargs)
            for rank, of_rank in enumerate(options)
        ]
        return cls(worker_class.__name__, actors)

    def setup(self) -> None:
        """Wait for the actors, let the ranks meet and load their models. Groups made before start side by side."""
        address = self._get([self.actors[0].rendezvous_address.remote()])[0]
        self.call_all("setup", address)

    def call_all(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call ``method`` on every rank with the same arguments; the answers by rank."""
        return self._get([getattr(actor, method).remote(*args, **kwargs) for actor in self.actors])

    def dispatch(self, method: str, batch: Any, order: Tensor | None = None, **kwargs: Any) -> Any:
        """Call ``method`` with one shard of ``batch`` a rank, and concatenate the answers in the batch's own row order.

        order: int64 ``[B]``, rows in the order in which ranks take contiguous shards (see ``rank_order``); the batch's
        own order when ``None``.
        """
        answers = self.map_shards(method, batch, order, **kwargs)
        together = containers.concat(answers)
        return together if order is None else containers.select_rows(together, torch.argsort(order))

    def map_shards(self, method: str, batch: Any, order: Tensor | None = None, **kwargs: Any) -> list[Any]:
        """Call ``method`` with one shard of ``batch`` a rank; the answers by rank, as they are."""
        if len(batch) % self.world_size:
            raise BatchSizeError(
                f"{len(batch)} rows do not divide over {self.world_size} ranks of {self.name}; "
                "change data.train_batch_size, rollout.n or the number of ranks"
            )
        rows = batch if order is None else containers.select_rows(batch, order)
        shards = containers.shard(rows, self.world_size)
        return self._get(
            [getattr(actor, method).remote(shard, **kwargs) for actor, shard in zip(self.actors, shards, strict=True)]
        )

    def close(self) -> None:
        """End the actors."""
        for actor in self.actors:
            ray.kill(actor)

    def _get(self, refs: list[Any]) -> list[Any]:
        return get(refs, self.name)


def get(refs: Any, what: str) -> Any:
    """``ray.get`` that raises a worker's own typed error, and names ``what`` when an actor has died."""
    try:
        return ray.get(refs)
    except VerliftError as error:
        cause = getattr(error, "cause", None)
        raise (cause if isinstance(cause, VerliftError) else error) from None
    except RayActorError as error:
        raise ResourceError(f"an actor of {what} died: {error}") from error


def check_finished(refs: Sequence[Any], what: str) -> None:
    """Raise the error of any call among ``refs`` that has ended in one; return at once otherwise."""
    finished, _ = ray.wait(list(refs), num_returns=len(refs), timeout=0)
    get(finished, what)


def rank_order(num_rows: int, mini_batch_rows: int, world_size: int) -> Tensor:
    """Rows in the order in which contiguous shards give each rank its share of every mini-batch, int64 ``[B]``.

    Mini-batch k is rows ``[k*M, (k+1)*M)`` of the batch; rank r takes the r-th of its equal pieces, so that the k-th
    local slice of every rank belongs to global mini-batch k, for any number of ranks.
    """
    if num_rows % mini_batch_rows or mini_batch_rows % world_size:
        raise BatchSizeError(
            f"{num_rows} rows, mini-batches of {mini_batch_rows} and {world_size} ranks: "
            "each must divide the one before"
        )
    pieces = torch.arange(num_rows).view(num_rows // mini_batch_rows, world_size, mini_batch_rows // world_size)
    return pieces.transpose(0, 1).reshape(-1)


def free_address() -> str:
    """``tcp://host:port`` on this node, for a ``torch.distributed`` rendezvous."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    return f"tcp://{ray.util.get_node_ip_address()}:{port}"
