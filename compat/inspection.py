"""A batch described for a reader of logs: shapes, dtypes, sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tensordict import TensorDict
from torch import Tensor

from compat import jagged
from compat.columns import columns_of


def describe_batch(batch: TensorDict | None, arrays: Mapping[str, np.ndarray], meta_info: Mapping[str, Any]) -> str:
    """One line a column under the heading of its namespace; jagged columns show ``j`` and their longest row."""
    lines = ["batch"]
    lines += [
        f"  {key}: {_describe_column(column)}" for key, column in (columns_of(batch) if batch is not None else ())
    ]
    lines.append("non_tensor_batch")
    lines += [f"  {key}: {_describe_type(array)}" for key, array in arrays.items()]
    lines.append("meta_info")
    lines += [f"  {key}: {_describe_type(value)}" for key, value in meta_info.items()]
    return "\n".join(lines)


def _describe_column(column: Any) -> str:
    if not isinstance(column, Tensor):
        return type(column).__name__
    if not jagged.is_jagged(column):
        return f"{tuple(column.shape)} ({column.dtype}) {column.device}"
    sizes: list[Any] = list(column.shape)
    sizes[jagged.ragged_dim(column)] = "j"
    longest = int(jagged.row_lengths(column).max()) if sizes[0] else 0
    return f"({', '.join(map(str, sizes))}) j <= {longest} ({column.dtype}) {column.device}"


def _describe_type(value: Any) -> str:
    """The type of a value and, three elements deep into lists, of what is in it."""
    if isinstance(value, np.ndarray):
        return f"ndarray{value.shape} ({value.dtype})"
    if isinstance(value, list):
        return f"list[{'|'.join(sorted({_describe_type(item) for item in value[:3]})) or '...'}]"
    if isinstance(value, tuple):
        return f"tuple({', '.join(map(_describe_type, value))})"
    if isinstance(value, dict) and value:
        key, item = next(iter(value.items()))
        return f"dict[{_describe_type(key)}: {_describe_type(item)}]"
    return type(value).__name__


def size_in_bytes(batch: TensorDict | None, arrays: Mapping[str, np.ndarray]) -> tuple[int, int]:
    """Bytes of the tensors, and of the arrays; an array of Python objects counts its pointers only."""
    tensors = 0
    for _, column in columns_of(batch) if batch is not None else ():
        held = jagged.unjag(column)[0] if jagged.is_jagged(column) else column
        tensors += held.numel() * held.element_size() if isinstance(held, Tensor) else 0
    return tensors, sum(array.nbytes for array in arrays.values())
