"""Building a ``TensorDict`` of a batch, by the rules of ``verl.utils.tensordict_utils``.

Tensors are columns, one Python object a row is a ``NonTensorStack``, what the whole batch shares is ``NonTensorData``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch import Tensor

from compat import jagged
from compat.columns import columns_of, from_columns
from compat.errors import ColumnTypeError, DataProtoError, LayoutError, MissingColumnError
from runtime.arrays import object_array
from shared_algos.segments import Segments


def get_tensordict(tensor_dict: Mapping[str, Any], non_tensor_dict: Mapping[str, Any] | None = None) -> TensorDict:
    """A ``TensorDict`` of B rows from columns and from values that all rows share.

    tensor_dict: tensors ``[B, ...]`` or jagged ``[B, j]``, lists and arrays of B objects, ``NonTensorStack``.
    non_tensor_dict: any value. Raises ``DataProtoError`` naming the columns whose row counts differ, or the key that is
    in both.
    """
    columns = {key: _as_column(key, value) for key, value in tensor_dict.items()}
    sizes = {key: len(column) for key, column in columns.items()}
    if len(set(sizes.values())) > 1:
        raise DataProtoError(f"columns of one batch must have the same number of rows, got {sizes}")
    shared = dict(non_tensor_dict or {})
    if both := columns.keys() & shared.keys():
        raise DataProtoError(f"keys {sorted(both)} are columns and shared values at once; rename one of them")
    batch_size = list(sizes.values())[:1]
    batch = from_columns(columns, batch_size[0]) if batch_size else TensorDict({}, batch_size=[])
    for key, value in shared.items():
        batch.set_non_tensor(key, value)
    return batch


def _as_column(key: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.is_nested and not jagged.is_jagged(value):
            raise LayoutError(f"column {key!r} is nested with layout {value.layout}; it must be torch.jagged")
        return value
    if isinstance(value, NonTensorStack):
        return value
    if not isinstance(value, list | np.ndarray):
        raise ColumnTypeError(f"column {key!r} is a {type(value).__name__}; it must be a tensor, a list or an array")
    if any(isinstance(item, Tensor) for item in value):
        raise ColumnTypeError(f"column {key!r} is a list of tensors; stack them, or use list_of_dict_to_tensordict")
    return object_column(value)


def object_column(values: Iterable[Any]) -> NonTensorStack:
    """One Python object a row."""
    return NonTensorStack(*(NonTensorData(value) for value in values))


def split_tensordict(batch: TensorDict) -> tuple[dict[str, Tensor], dict[str, np.ndarray], dict[str, Any]]:
    """Undo ``get_tensordict``: tensors, object arrays ``[B]`` and shared values."""
    tensors: dict[str, Tensor] = {}
    objects: dict[str, np.ndarray] = {}
    shared: dict[str, Any] = {}
    for key, column in columns_of(batch):
        if isinstance(column, NonTensorStack):
            objects[key] = stack_objects(column.tolist())
        elif isinstance(column, NonTensorData):
            shared[key] = column.data
        else:
            tensors[key] = column
    return tensors, objects, shared


def stack_objects(values: Sequence[Any]) -> np.ndarray:
    """The object array whose rows are ``values``: ``[B, ...]`` where they are arrays of one shape, else ``[B]``."""
    if values and all(isinstance(value, np.ndarray) and value.shape == values[0].shape for value in values):
        return np.stack(list(values)).astype(object)
    return object_array(values)


def list_of_dict_to_tensordict(list_of_dicts: Sequence[Mapping[str, Any]]) -> TensorDict:
    """Collate B rows into a ``TensorDict``, by verl's rule: tensors of one shape are stacked, others become jagged.

    Ragged tensors may differ from row to row in one dimension: ``[L]`` gives ``[B, j]``, ``[L, k]`` gives ``[B, j,
    k]``, ``[k, L]`` gives ``[B, k, j]``. Other values become a ``NonTensorStack``. Columns of equal lengths share one
    offsets tensor. Raises ``MissingColumnError`` naming the row and its keys, ``LayoutError`` naming the column and its
    shapes.
    """
    if not list_of_dicts:
        raise DataProtoError("cannot build a TensorDict from zero rows; give at least one")
    keys = list_of_dicts[0].keys()
    for row, values in enumerate(list_of_dicts):
        if odd := keys ^ values.keys():
            raise MissingColumnError(
                f"row {row} has keys {sorted(values)} where row 0 has {sorted(keys)}: see {sorted(odd)}"
            )
    columns = {key: _collate(key, [values[key] for values in list_of_dicts]) for key in keys}
    return from_columns(columns, len(list_of_dicts))


def _collate(key: str, values: list[Any]) -> Any:
    if not all(isinstance(value, Tensor) for value in values):
        return object_column(values)
    if all(value.shape == values[0].shape for value in values):
        return torch.stack(values)
    return _collate_ragged(key, values)


def _collate_ragged(key: str, values: list[Tensor]) -> Tensor:
    shapes = [tuple(value.shape) for value in values]
    same_rank = len({len(shape) for shape in shapes}) == 1
    differing = [dim for dim, sizes in enumerate(zip(*shapes, strict=False)) if len(set(sizes)) > 1]
    if not same_rank or len(differing) != 1:
        raise LayoutError(
            f"column {key!r} has rows of shapes {sorted(set(shapes))}; they may differ in one dimension only"
        )
    dim = differing[0]
    lengths = torch.tensor([shape[dim] for shape in shapes], device=values[0].device)
    return jagged.jagged(torch.cat(values, dim=dim), Segments.from_lengths(lengths), ragged_dim=dim + 1)
