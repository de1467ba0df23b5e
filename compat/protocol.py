"""``DataProto``: the batch that every stage of the legacy trainer reads columns from and adds columns to.

It keeps the meaning of ``verl.protocol`` (verl 0.9.1), so that old recipes run on it. Where it differs it is more
helpful: errors name the key, the row and both numbers; ``union`` checks everything before it changes anything;
``concat`` merges measurements by the rule of ``compat.meta_info``; jagged columns go through every row operation; a row
of ``non_tensor_batch`` is always one object.

A batch is made of tensors, arrays of Python objects, and values that all rows share:

>>> import numpy as np
>>> import torch
>>> from tensordict import TensorDict
>>> from compat.protocol import DataProto
>>> data = DataProto(
...     batch=TensorDict(
...         {
...             "responses": torch.tensor([[11, 12], [21, 0]]),
...             "response_mask": torch.tensor([[1, 1], [1, 0]]),
...         },
...         batch_size=2,
...     ),
...     non_tensor_batch={
...         "uid": np.array(["A", "B"], dtype=object),
...     },
...     meta_info={
...         "temperature": 1.0,
...     },
... )
>>> len(data)
2

Two prompts become six trajectories, get a column of scores, and change their order with all their columns:

>>> prompts = DataProto.from_dict(
...     tensors={"dummy": torch.tensor([[0], [1]])},
...     non_tensors={"uid": np.array(["A", "B"], dtype=object)},
... )
>>> trajectories = prompts.repeat(repeat_times=3, interleave=True)
>>> trajectories.non_tensor_batch["uid"].tolist()
['A', 'A', 'A', 'B', 'B', 'B']
>>> prompts.repeat(3, False).non_tensor_batch["uid"].tolist()
['A', 'B', 'A', 'B', 'A', 'B']
>>> scores = DataProto.from_dict(
...     tensors={"score": torch.tensor([1.0, 0.0, 0.5, 1.0, 1.0, 0.0])}
... )
>>> trajectories.union(scores) is trajectories
True
>>> trajectories.reorder(torch.tensor([0, 3, 1, 4, 2, 5]))
>>> trajectories.non_tensor_batch["uid"].tolist()
['A', 'B', 'A', 'B', 'A', 'B']
>>> trajectories.batch["score"].tolist()
[1.0, 1.0, 0.0, 1.0, 0.5, 0.0]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from compat import columns
from compat import rows as _rows  # noqa: F401  (registers what DataProto inherits from with runtime.containers)
from compat.disk import read_state, write_state
from compat.errors import ColumnTypeError, DataProtoError, MissingColumnError
from compat.futures import DataProtoFuture
from compat.inspection import describe_batch, size_in_bytes
from compat.meta_info import merge_meta_info
from compat.old_pickles import read_batch
from compat.protocol_columns import ColumnOperations, tensor_batch
from compat.protocol_ops import (
    fold_batch_dim,
    list_of_dict_to_dict_of_list,
    pad_dataproto_to_divisor,
    unfold_batch_dim,
    unpad_dataproto,
)
from compat.row_choice import DataProtoConfig
from compat.serialization import (
    deserialize_single_tensor,
    deserialize_tensordict,
    serialize_single_tensor,
    serialize_tensordict,
)
from compat.tensordicts import get_tensordict, object_column, split_tensordict, stack_objects
from compat.union import (
    union_numpy_dict,
    union_tensor_dict,
    union_two_dict,
)
from runtime.arrays import object_array

__all__ = [
    "DataProto",
    "DataProtoConfig",
    "DataProtoFuture",
    "DataProtoItem",
    "collate_fn",
    "dataprotoitem_to_dataproto",
    "deserialize_single_tensor",
    "deserialize_tensordict",
    "fold_batch_dim",
    "list_of_dict_to_dict_of_list",
    "pad_dataproto_to_divisor",
    "serialize_single_tensor",
    "serialize_tensordict",
    "unfold_batch_dim",
    "union_numpy_dict",
    "union_tensor_dict",
    "union_two_dict",
    "unpad_dataproto",
]

Batch = TypeVar("Batch", bound="DataProto")


@dataclass
class DataProtoItem:
    """One row of a ``DataProto``: its tensors without dim 0, its Python objects, and the batch's ``meta_info``."""

    batch: TensorDict | None = None
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)


@dataclass
class DataProto(ColumnOperations):
    """A batch of B rows in three namespaces.

    ``meta_info`` is the same dict in every batch derived from another by rows or columns, as in verl: what is set in
    one is seen in all.
    """

    batch: TensorDict | None = None
    """Tensors ``[B, ...]``, or jagged ``[B, j]``; one batch dimension."""
    non_tensor_batch: dict[str, np.ndarray] = field(default_factory=dict)
    """Arrays with B entries on dim 0, usually of dtype object."""
    meta_info: dict[str, Any] = field(default_factory=dict)
    """Settings and metrics of the whole batch; never split."""

    def __post_init__(self) -> None:
        self.non_tensor_batch = {} if self.non_tensor_batch is None else self.non_tensor_batch
        self.meta_info = {} if self.meta_info is None else self.meta_info
        self.check_consistency()

    def check_consistency(self) -> None:
        """Raise ``DataProtoError`` unless all columns are of their namespace's type and have B rows."""
        if self.batch is not None and len(self.batch.batch_size) != 1:
            raise DataProtoError(f"a DataProto has one batch dimension, got batch size {tuple(self.batch.batch_size)}")
        for key, array in self.non_tensor_batch.items():
            if not isinstance(array, np.ndarray):
                raise DataProtoError(f"non_tensor_batch {key!r} must be a numpy array, got {type(array).__name__}")
            if array.ndim == 0 or len(array) != len(self):
                raise DataProtoError(f"non_tensor_batch {key!r} has shape {array.shape} in a batch of {len(self)} rows")

    def __len__(self) -> int:
        if self.batch is not None:
            return self.batch.batch_size[0]
        for array in self.non_tensor_batch.values():
            return array.shape[0] if array.ndim else 0
        return 0

    # --- construction -------------------------------------------------------------------------------------------------

    @classmethod
    def from_single_dict(
        cls, data: Mapping[str, Any], meta_info: dict[str, Any] | None = None, auto_padding: bool = False
    ) -> Self:
        """Sort a dict, such as a data loader gives, into tensors and arrays. Other types raise ``ColumnTypeError``."""
        for key, value in data.items():
            if not isinstance(value, Tensor | np.ndarray):
                raise ColumnTypeError(f"{key!r} is a {type(value).__name__}; it must be a tensor or a numpy array")
        tensors = {key: value for key, value in data.items() if isinstance(value, Tensor)}
        arrays = {key: value for key, value in data.items() if isinstance(value, np.ndarray)}
        return cls.from_dict(tensors, arrays, meta_info, auto_padding=auto_padding)

    @classmethod
    def from_dict(
        cls,
        tensors: Mapping[str, Tensor] | None = None,
        non_tensors: Mapping[str, Any] | None = None,
        meta_info: dict[str, Any] | None = None,
        num_batch_dims: int = 1,
        auto_padding: bool = False,
    ) -> Self:
        """Build from tensors ``[B, ...]`` and arrays or lists of B objects; a list becomes ``[B]`` of dtype object.

        Raises ``ColumnTypeError`` for a text, a dict or a single value where B objects belong.
        """
        arrays = {key: _objects(key, value) for key, value in (non_tensors or {}).items()}
        if auto_padding:
            meta_info = {**(meta_info or {}), DataProtoConfig.auto_padding_key: True}
        batch = tensor_batch(tensors, num_batch_dims) if tensors else None
        return cls(batch=batch, non_tensor_batch=arrays, meta_info={} if meta_info is None else meta_info)

    @classmethod
    def from_tensordict(
        cls, tensor_dict: TensorDict, meta_info: dict[str, Any] | None = None, num_batch_dims: int = 1
    ) -> Self:
        """Sort out a ``TensorDict``: object stacks become arrays, values that all rows share ``meta_info``."""
        tensors, arrays, shared = split_tensordict(tensor_dict)
        sized = len(tensor_dict.batch_size) > 0
        batch = TensorDict(tensors, batch_size=tensor_dict.batch_size[:num_batch_dims]) if sized else None
        return cls(batch, arrays, {**(meta_info or {}), **shared})

    def to_tensordict(self) -> TensorDict:
        """One ``TensorDict`` of everything, the inverse of ``from_tensordict``."""
        tensors = {} if self.batch is None else dict(columns.columns_of(self.batch))
        if both := tensors.keys() & self.non_tensor_batch.keys():
            raise DataProtoError(f"keys {sorted(both)} are in batch and in non_tensor_batch; rename one of them")
        objects = {key: object_column(array) for key, array in self.non_tensor_batch.items()}
        if len(self) and not tensors and not objects:
            raise DataProtoError(f"{len(self)} rows without any column have no TensorDict form")
        return get_tensordict({**tensors, **objects}, self.meta_info)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def __getitem__(self, item: Any) -> Any:
        """An integer gives a ``DataProtoItem``, a slice or indices or a mask a batch, a name its column."""
        if isinstance(item, str):
            return self._column(item)
        if isinstance(item, slice):
            return self.slice(item.start, item.stop, item.step)
        if isinstance(item, list | np.ndarray | Tensor):
            return self.select_idxs(item)
        if isinstance(item, int | np.integer):
            return self._item(int(item))
        raise ColumnTypeError(
            f"a DataProto is indexed by int, slice, list, array, tensor or name, got {type(item).__name__}"
        )

    def _item(self, row: int) -> DataProtoItem:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} is out of range for a batch of {len(self)} rows")
        tensors = None if self.batch is None else self.batch[row]
        objects = {key: array[row] for key, array in self.non_tensor_batch.items()}
        return DataProtoItem(tensors, objects, self.meta_info)

    def with_columns(self, batch: TensorDict | None, arrays: dict[str, np.ndarray], meta_info: dict[str, Any]) -> Self:
        return type(self)(batch=batch, non_tensor_batch=arrays, meta_info=meta_info)

    def _take(self, rows: Tensor) -> Self:
        index = rows.numpy()
        batch = None if self.batch is None else columns.index_rows(self.batch, rows)
        return self.with_columns(
            batch, {key: array[index] for key, array in self.non_tensor_batch.items()}, self.meta_info
        )

    def _between(self, start: int, stop: int) -> Self:
        batch = None if self.batch is None else columns.slice_rows(self.batch, start, stop)
        arrays = {key: array[start:stop] for key, array in self.non_tensor_batch.items()}
        return self.with_columns(batch, arrays, self.meta_info)

    def _become(self, other: Self) -> None:
        self.batch, self.non_tensor_batch = other.batch, other.non_tensor_batch

    @staticmethod
    def concat(data: Sequence[Batch]) -> Batch:
        """Join batches row after row. ``meta_info`` is merged by the rule of ``compat.meta_info``; no key is dropped.

        Raises ``MissingColumnError`` naming a column that not all parts have, ``DataProtoError`` naming a column whose
        shapes differ, ``UnionConflictError`` naming a setting in ``meta_info`` on which parts contradict each other.
        """
        if not data:
            raise DataProtoError("cannot concatenate zero batches; give at least one")
        if len({part.batch is None for part in data}) > 1:
            without = next(number for number, part in enumerate(data) if part.batch is None)
            raise MissingColumnError(
                f"part {without} has no tensors where others have; all parts need the same columns"
            )
        batch = None if data[0].batch is None else columns.concat_rows([cast(TensorDict, part.batch) for part in data])
        arrays = list_of_dict_to_dict_of_list([part.non_tensor_batch for part in data])
        joined = {key: _concat_arrays(key, parts) for key, parts in arrays.items()}
        return type(data[0])(batch, joined, merge_meta_info([part.meta_info for part in data]))

    # --- devices, size, transport -------------------------------------------------------------------------------------

    def to(self, device: torch.device | str | int) -> Self:
        """Move the tensors to ``device``, in place; arrays and ``meta_info`` stay where they are."""
        if self.batch is not None:
            self.batch = self.batch.to(device)
        return self

    def get_data_info(self) -> str:
        """Names, shapes, dtypes and devices of all columns, and the types in ``meta_info``, one a line."""
        return describe_batch(self.batch, self.non_tensor_batch, self.meta_info)

    def print_size(self, prefix: str = "") -> None:
        """Print the size of the tensors and of the arrays (for Python objects: of the pointers) in GiB."""
        tensors, arrays = size_in_bytes(self.batch, self.non_tensor_batch)
        message = f"Size of tensordict: {tensors / 2**30} GB, size of non_tensor_batch: {arrays / 2**30} GB"
        print(f"{prefix}, {message}" if prefix else message)

    def __getstate__(self) -> tuple[Any, dict[str, np.ndarray], dict[str, Any]]:
        state = None if self.batch is None else serialize_tensordict(self.batch)
        return state, self.non_tensor_batch, self.meta_info

    def __setstate__(self, state: tuple[Any, dict[str, np.ndarray], dict[str, Any]]) -> None:
        batch, self.non_tensor_batch, self.meta_info = state
        self.batch = read_batch(batch)

    def save_to_disk(self, filepath: str | Path) -> None:
        """Write the batch to a file: tensors and arrays as safetensors, the rest as JSON; see ``compat.disk``.

        Raises ``ColumnTypeError`` naming the place of a value that is not data; nothing is then written.
        """
        write_state(filepath, (self.batch, self.non_tensor_batch, self.meta_info))

    @staticmethod
    def load_from_disk(filepath: str | Path) -> DataProto:
        """Read a batch that ``save_to_disk`` wrote, here or, as a pickle, in verl. Nothing in the file is run.

        Raises ``PickleRefusedError`` naming what a pickle asks for beside data.
        """
        return DataProto(*read_state(filepath))


def collate_fn(x: Sequence[DataProtoItem]) -> DataProto:
    """Stack rows into a batch: tensors become ``[B, ...]``, objects ``[B]``; ``meta_info`` is left out, as in verl."""
    if not x:
        raise DataProtoError("cannot collate zero rows; give at least one")
    tensors: list[Any] = [item.batch for item in x if item.batch is not None]
    objects = list_of_dict_to_dict_of_list([item.non_tensor_batch for item in x])
    batch = cast(TensorDict, torch.stack(tensors)).contiguous() if tensors else None
    return DataProto(batch, {key: stack_objects(values) for key, values in objects.items()})


def dataprotoitem_to_dataproto(item: DataProtoItem | DataProto) -> DataProto:
    """Rows chosen by index as a batch, which they are already.

    Up to verl 0.3 ``batch[indices]`` gave a ``DataProtoItem``, to be converted. One row becomes a batch of one.
    """
    if isinstance(item, DataProto):
        return item
    batch = collate_fn([item])
    batch.meta_info = item.meta_info
    return batch


def _objects(key: str, values: Any) -> np.ndarray:
    if isinstance(values, np.ndarray):
        return values
    # Letters of a text and keys of a dict would pass as rows where their number happens to be B.
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ColumnTypeError(
            f"non_tensor {key!r} is a {type(values).__name__}; it must be an array or list of B objects"
        )
    return object_array(list(values))


def _concat_arrays(key: str, parts: list[np.ndarray]) -> np.ndarray:
    if len(shapes := {part.shape[1:] for part in parts}) > 1:
        raise DataProtoError(f"non_tensor_batch {key!r} has rows of shapes {sorted(shapes)}; they must be the same")
    return np.concatenate(parts, axis=0)
