"""What a worker group does to a batch of any kind: cut it for the ranks, join what they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from tensordict import TensorDict

from compat.columns import slice_rows
from compat.errors import ColumnTypeError, DataProtoError
from compat.futures import DataProtoFuture, concat_parts
from compat.protocol import DataProto
from compat.row_choice import chunk_sizes


def chunk_tensordict(td: TensorDict, chunks: int) -> list[TensorDict]:
    """Cut a batch into ``chunks`` equal parts, views of its columns; jagged ones stay jagged.

    Raises ``UnequalSplitError`` naming both numbers. Follows verl's function of this name.
    """
    size, *_ = chunk_sizes(len(td), chunks, allow_unequal=False)
    return [slice_rows(td, part * size, (part + 1) * size) for part in range(chunks)]


class BatchData:
    """A batch, or a list of the batches that ranks returned, behind one face.

    ``DataProto``, ``DataProtoFuture``, ``TensorDict``, and any container that offers ``chunk(n)`` and
    ``concat(parts)``, such as the key and index metadata of TransferQueue. Follows verl's class of this name.
    """

    def __init__(self, data: Any) -> None:
        self._data = data

    def is_chunkable(self) -> bool:
        """Whether ``chunk`` can cut the data."""
        return _is_container(self._data)

    def is_concatable(self) -> bool:
        """Whether the data is a list whose parts ``concat`` can join; containers and Ray references are such parts."""
        data = self._data
        if not isinstance(data, list | tuple) or not data:
            return False
        return _is_reference(data[0]) or (_is_container(data[0]) and not isinstance(data[0], DataProtoFuture))

    def chunk(self, chunks: int) -> Sequence[Any]:
        """``chunks`` parts of the data, each a container of its own kind."""
        if isinstance(self._data, TensorDict):
            return tuple(chunk_tensordict(self._data, chunks))
        return self._data.chunk(chunks)

    def concat(self) -> Any:
        """One container of the parts; Ray references give a ``DataProtoFuture`` of them."""
        if not self._data:
            raise ColumnTypeError("cannot concatenate zero batches; give at least one")
        if _is_reference(self._data[0]):
            return DataProtoFuture.concat(self._data)
        return concat_parts(self._data)


def _is_container(value: Any) -> bool:
    return isinstance(value, TensorDict) or all(callable(getattr(value, name, None)) for name in ("chunk", "concat"))


def _is_reference(value: Any) -> bool:
    import ray

    return isinstance(value, ray.ObjectRef)


def all_gather_data_proto(data: DataProto, process_group: Any) -> None:
    """Give every rank of ``process_group`` the rows of all ranks, in rank order, in place; ``meta_info`` stays.

    Tensors come back on the device they were on. Unlike verl's, jagged columns are gathered too, and a column that not
    all ranks have raises ``MissingColumnError``.
    """
    if not isinstance(data, DataProto):
        raise DataProtoError(f"all_gather_data_proto gathers a DataProto, got a {type(data).__name__}")
    parts: list[Any] = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(parts, DataProto(data.batch, data.non_tensor_batch, {}), group=process_group)
    gathered = DataProto.concat(parts)
    if data.batch is not None and gathered.batch is not None:
        data.batch = gathered.batch if data.batch.device is None else gathered.batch.to(data.batch.device)
    data.non_tensor_batch = gathered.non_tensor_batch
