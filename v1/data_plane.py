"""The one file that knows TransferQueue: rows live there under keys, as jagged columns on one shared set of offsets.

Keys are resolved to a ``BatchMeta`` when a batch is dispatched, and a ``BatchMeta`` is used for that one call: its
indexes are given to other rows once a partition is cleared. Every read checks its row count and field set, because
TransferQueue answers a missing key with fewer rows and a missing field by leaving it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tensordict import NonTensorStack, TensorDict
from torch import Tensor
from transfer_queue import BatchMeta, KVBatchMeta

from compat.jagged import jagged, unjag
from runtime import containers
from runtime.arrays import object_array
from runtime.cluster import await_cpus
from runtime.errors import BatchSizeError, DataPlaneError
from runtime.fields import LEVELS, Level
from runtime.identity import TrajectoryKey
from runtime.trajectories import TrajectoryBatch
from shared_algos.segments import Segments

__all__ = [
    "DrawnBatch",
    "KVBatchMeta",
    "Rows",
    "Shard",
    "clear",
    "connect",
    "field_names",
    "list_tags",
    "put_rows",
    "put_tag",
    "read",
    "resolve",
    "start",
    "stop",
    "write",
]


def start(config: DictConfig) -> None:
    """Start TransferQueue in this Ray session, or attach to the one that is there.

    Raises ``ResourceError`` when Ray does not have the CPUs within ``runtime.schedule_timeout_s``: TransferQueue itself
    would wait for ever.
    """
    backend = OmegaConf.to_container(config.transfer_queue.backend, resolve=True)
    if not _is_running():
        units = config.transfer_queue.backend.SimpleStorage.num_data_storage_units
        await_cpus(1 + units, config.runtime.schedule_timeout_s, f"TransferQueue with {units} storage units")
    tq.init(OmegaConf.create({"backend": backend}))


def _is_running() -> bool:
    try:
        ray.get_actor("TransferQueueController", namespace="transfer_queue")
    except ValueError:
        return False
    return True


def stop() -> None:
    """Stop TransferQueue. Once a process: a worker that still holds a client of the old one would wait for ever."""
    tq.close()


def connect() -> Any:
    """This process's client; the first call attaches it to the running TransferQueue."""
    try:
        return tq.get_client()
    except (AssertionError, RuntimeError, ValueError):
        tq.init()
        return tq.get_client()


@dataclass(frozen=True)
class DrawnBatch:
    """Rows of a batch, some of which come several times or not at all: a ``KVBatchMeta`` refuses to name a key twice.

    It is read and dispatched like one. Nothing can be written through it: two rows of one key would be one.
    """

    drawn_from: KVBatchMeta
    """All rows, each once; they lie in TransferQueue, drawn or not."""
    rows: tuple[int, ...]
    """The row of ``drawn_from`` at each place."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def keys(self) -> list[str]:
        """The key of each row."""
        return [self.drawn_from.keys[row] for row in self.rows]

    @property
    def tags(self) -> list[dict[str, Any]]:
        """The tags of each row."""
        return [self.drawn_from.tags[row] for row in self.rows]


Rows: TypeAlias = KVBatchMeta | DrawnBatch


@dataclass(frozen=True)
class Shard:
    """Rows of one dispatch, resolved to where they lie. Lives for one call."""

    meta: BatchMeta
    batch: KVBatchMeta
    """The rows that are fetched, each key once."""
    rows: tuple[int, ...] | None = None
    """The row of ``batch`` at each place of the shard; ``None``: they are the shard."""

    def __len__(self) -> int:
        return len(self.batch if self.rows is None else self.rows)


def put_rows(batch: TrajectoryBatch, partition_id: str, tags: Sequence[Mapping[str, Any]]) -> None:
    """Store all columns and objects of ``batch`` under its keys, with one dict of tags a row."""
    tq.kv_batch_put(
        keys=[str(key) for key in batch.keys],
        partition_id=partition_id,
        fields=_as_tensordict(batch, batch.columns, batch.objects),
        tags=[dict(tag) for tag in tags],
    )


def put_tag(key: str, partition_id: str, tag: Mapping[str, Any]) -> None:
    """Store only tags under ``key``."""
    tq.kv_batch_put(keys=[key], partition_id=partition_id, tags=[dict(tag)])


def list_tags(partition_id: str) -> dict[str, dict[str, Any]]:
    """The tags of every key of a partition, ``{}`` when it is empty."""
    return tq.kv_list(partition_id=partition_id).get(partition_id, {})


def clear(keys: Sequence[str], partition_id: str) -> None:
    """Remove ``keys`` and all their fields."""
    if keys:
        tq.kv_clear(keys=list(keys), partition_id=partition_id)


def field_names(batch: Rows) -> list[str]:
    """The fields that every row of ``batch`` has."""
    return list(resolve(batch).meta.field_names)


def read(batch: Rows, fields: Sequence[str]) -> TrajectoryBatch:
    """Fetch ``fields`` of every row of ``batch``, in its order; of a key that comes several times, once."""
    return containers.read_batch(resolve(batch), fields)


def write(
    batch: KVBatchMeta,
    trajectories: TrajectoryBatch,
    columns: Mapping[str, Tensor],
    objects: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write packed ``columns`` and ``objects`` of ``trajectories`` back under the keys of ``batch``."""
    containers.answer(resolve(batch), trajectories, columns, objects)


def resolve(batch: Rows) -> Shard:
    """Look up where the rows of ``batch`` lie now; ``DataPlaneError`` names a key that is not there."""
    if isinstance(batch, DrawnBatch):
        place = {row: number for number, row in enumerate(dict.fromkeys(batch.rows))}
        once = containers.select_rows(batch.drawn_from, torch.tensor(list(place)))
        return replace(resolve(once), rows=tuple(place[row] for row in batch.rows))
    meta = connect().kv_retrieve_meta(keys=list(batch.keys), partition_id=batch.partition_id, create=False)
    if len(meta) != len(batch):
        there = list_tags(batch.partition_id)
        missing = [key for key in batch.keys if key not in there]
        raise DataPlaneError(
            f"partition {batch.partition_id!r} has {len(meta)} of {len(batch)} rows; missing {missing[:3]}. "
            "They were cleared or never written: read a batch only within its own step."
        )
    return Shard(meta, batch)


@containers.shard.register(KVBatchMeta)
@containers.shard.register(DrawnBatch)
def _shard(batch: Rows, count: int) -> list[Shard]:
    if len(batch) % count:
        raise BatchSizeError(f"{len(batch)} rows do not divide into {count} shards")
    if isinstance(batch, DrawnBatch):
        return [resolve(containers.select_rows(batch, rows)) for rows in torch.arange(len(batch)).chunk(count)]
    whole = resolve(batch)
    return [Shard(meta, part) for meta, part in zip(whole.meta.chunk(count), batch.chunk(count), strict=True)]


@containers.select_rows.register
def _select_rows(batch: KVBatchMeta, rows: Tensor) -> Rows:
    if len(rows.unique()) < len(rows):
        return DrawnBatch(batch, tuple(rows.tolist()))
    return batch.select_keys([batch.keys[row] for row in rows.tolist()])


@containers.select_rows.register
def _select_drawn_rows(batch: DrawnBatch, rows: Tensor) -> DrawnBatch:
    return replace(batch, rows=tuple(batch.rows[row] for row in rows.tolist()))


@containers.read_batch.register
def _read_batch(shard: Shard, fields: Sequence[str]) -> TrajectoryBatch:
    available = set(shard.meta.field_names)
    if missing := [name for name in fields if name not in available]:
        raise DataPlaneError(
            f"partition {shard.batch.partition_id!r} has no field {missing} on all of {len(shard)} rows "
            f"(first key {shard.batch.keys[0]}); it has {sorted(available)}. Did the stage that writes it run?"
        )
    data = connect().get_data(shard.meta.select_fields(list(fields)))
    if data.batch_size[0] != len(shard.batch) or set(data.keys()) != set(fields):
        raise DataPlaneError(
            f"TransferQueue returned {data.batch_size[0]} rows with {sorted(data.keys())}, "
            f"expected {len(shard.batch)} rows with {sorted(fields)}"
        )
    prompts = Segments.from_lengths([tag["prompt_len"] for tag in shard.batch.tags])
    responses = Segments.from_lengths([tag["response_len"] for tag in shard.batch.tags])
    lengths = {
        Level.PROMPT: prompts.lengths,
        Level.RESPONSE: responses.lengths,
        Level.SEQUENCE: prompts.lengths + responses.lengths,
    }
    batch = TrajectoryBatch(
        keys=tuple(TrajectoryKey.parse(key) for key in shard.batch.keys),
        prompts=prompts,
        responses=responses,
        columns={name: _values(name, data[name], lengths) for name in fields if name in LEVELS},
        objects={name: _objects(data, name) for name in fields if name not in LEVELS},
    )
    return batch if shard.rows is None else batch.select(shard.rows)


@containers.answer.register
def _answer(
    shard: Shard,
    batch: TrajectoryBatch,
    columns: Mapping[str, Tensor],
    objects: Mapping[str, np.ndarray] | None = None,
) -> KVBatchMeta:
    if shard.rows is not None:
        raise DataPlaneError(
            f"{sorted(columns)} of drawn rows cannot be written: {len(shard)} rows share {len(shard.batch)} keys. "
            "Write before rows are drawn"
        )
    connect().put(_as_tensordict(batch, columns, objects or {}), shard.meta)
    return shard.batch


def _values(name: str, column: Tensor, lengths: Mapping[Level, Tensor]) -> Tensor:
    """Packed values of one field, once its rows have the lengths that the tags announce."""
    if LEVELS[name] is Level.ROW:
        return unjag(column)[0] if column.is_nested else column.reshape(-1)
    if not column.is_nested:
        raise DataPlaneError(f"field {name!r} came back dense {tuple(column.shape)}; it must stay jagged")
    values, segments = unjag(column)
    expected = lengths[LEVELS[name]]
    if not torch.equal(segments.lengths, expected):
        row = int((segments.lengths != expected).nonzero()[0])
        raise DataPlaneError(
            f"field {name!r} has {int(segments.lengths[row])} tokens in row {row}, its tags say {int(expected[row])}"
        )
    return values


def _objects(data: TensorDict, name: str) -> np.ndarray:
    values = data.get(name)
    return object_array(values.tolist() if isinstance(values, NonTensorStack) else list(values))


def _as_tensordict(
    batch: TrajectoryBatch, columns: Mapping[str, Tensor], objects: Mapping[str, np.ndarray]
) -> TensorDict:
    fields: dict[str, Any] = {name: _as_field(batch, name, values) for name, values in columns.items()}
    fields |= {name: NonTensorStack(*values) for name, values in objects.items()}
    return TensorDict(fields, batch_size=[len(batch)])


def _as_field(batch: TrajectoryBatch, name: str, values: Tensor) -> Tensor:
    level = LEVELS[name]
    return values if level is Level.ROW else jagged(values, batch.segments_of(level))
