"""Union: the columns of two batches of the same rows, side by side.

As in verl, a key that both have must hold equal values. Unlike there, every column is checked before any is added, so a
union that fails leaves both batches as they were; and the message names the key and the first row that differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tensordict import TensorDict
from torch import Tensor

from compat.columns import columns_of
from compat.equality import deep_equal, first_differing_row, values_agree
from compat.errors import DataProtoError, UnionConflictError


def union_tensor_dict(tensor_dict1: TensorDict, tensor_dict2: TensorDict) -> TensorDict:
    """Add the columns of ``tensor_dict2`` to ``tensor_dict1``, in place, and return it.

    Raises ``DataProtoError`` naming both batch sizes, or ``UnionConflictError`` naming the key and the first differing
    row.
    """
    check_tensor_union(tensor_dict1, tensor_dict2)
    for key, column in columns_of(tensor_dict2):
        if key not in tensor_dict1.keys():  # noqa: SIM118  iterating a TensorDict gives rows
            tensor_dict1.set(key, column)
    return tensor_dict1


def union_numpy_dict(
    tensor_dict1: dict[str, np.ndarray], tensor_dict2: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Add the arrays of ``tensor_dict2`` to ``tensor_dict1``, in place, and return it.

    Errors as ``union_tensor_dict``.
    """
    check_numpy_union(tensor_dict1, tensor_dict2)
    tensor_dict1.update(tensor_dict2)
    return tensor_dict1


def union_two_dict(dict1: dict[str, Any], dict2: Mapping[str, Any]) -> dict[str, Any]:
    """Add the entries of ``dict2`` to ``dict1``, in place, and return it; a shared key must hold equal values."""
    check_meta_union(dict1, dict2)
    dict1.update(dict2)
    return dict1


def check_tensor_union(left: TensorDict, right: TensorDict) -> None:
    """Raise unless ``union_tensor_dict`` would succeed."""
    if left.batch_size != right.batch_size:
        raise DataProtoError(
            f"union joins columns of the same rows, but one side has batch size {tuple(left.batch_size)} and the other "
            f"{tuple(right.batch_size)}; repeat the smaller side, or use concat to add rows"
        )
    for key, column in columns_of(right):
        if key in left.keys():  # noqa: SIM118
            _check_column(key, left.get(key), column)


def check_numpy_union(left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> None:
    """Raise unless ``union_numpy_dict`` would succeed."""
    for key in left.keys() & right.keys():
        _check_column(key, left[key], right[key])


def check_meta_union(left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    """Raise unless ``union_two_dict`` would succeed."""
    for key in right:
        if key in left and not values_agree(left[key], right[key]):
            raise UnionConflictError(
                f"meta_info {key!r} is {_brief(left[key])} on one side of the union and {_brief(right[key])} "
                "on the other; rename or pop one of them"
            )


def _check_column(key: str, left: Any, right: Any) -> None:
    if not isinstance(left, Tensor | np.ndarray):
        row = None if _objects_agree(left, right) else 0
    else:
        row = first_differing_row(left, right)
    if row is not None:
        raise UnionConflictError(
            f"column {key!r} is on both sides of the union and first differs in row {row}: "
            f"{_describe(left, row)} here, {_describe(right, row)} there; rename or pop one of them"
        )


def _objects_agree(left: Any, right: Any) -> bool:
    """Nested TensorDicts, NonTensorData and NonTensorStack."""
    if type(left) is not type(right):
        return False
    if isinstance(left, TensorDict):
        return deep_equal(left.to_dict(), right.to_dict())
    return deep_equal(left.tolist(), right.tolist())


def _describe(column: Any, row: int) -> str:
    if not isinstance(column, Tensor | np.ndarray):
        return _brief(column)
    where = f"{column.dtype} {tuple(column.shape)}"
    if row >= column.shape[0]:
        return f"no such row ({where})"
    return f"{_brief(column[row].tolist() if isinstance(column, Tensor) else column[row])} ({where})"


def _brief(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."
