"""A ``TensorDict`` as plain tuples of numpy arrays, and back.

Numpy is what Ray and pickle protocol 5 move without copying (measured: 621 MiB through Ray take 1.0 s to put and 6 ms
to get as numpy, 5.7 s and 5.4 s as torch tensors). bfloat16 and float8, which numpy lacks, travel as integers of their
width. ``VERL_DATAPROTO_SERIALIZATION_METHOD``, with which verl chooses between this and consolidated ``torch.save``
bytes, changes nothing: there is one way, and pickles of both of verl's are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from compat import jagged
from compat.columns import columns_of
from compat.errors import LayoutError
from shared_algos.segments import Segments

_NUMPY_LACKS = {
    dtype: torch.uint8 if dtype.itemsize == 1 else torch.int16
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
}

DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
"""Every dtype of torch by its names. A name that comes from a file is never looked up in torch itself."""


class DenseState(NamedTuple):
    """A dense tensor: contents as numpy, torch dtype and device by name."""

    array: np.ndarray
    dtype: str
    device: str


class JaggedState(NamedTuple):
    """A jagged tensor: packed values, int64 offsets ``[B+1]``, ragged dimension."""

    values: DenseState
    offsets: DenseState
    ragged_dim: int


class BatchState(NamedTuple):
    """A TensorDict: batch size, device by name or ``None``, and the state of each column."""

    batch_size: tuple[int, ...]
    device: str | None
    columns: dict[str, Any]


def serialize_tensor(tensor: Tensor) -> DenseState:
    """Contents of a dense tensor on the CPU; a view gives only what it shows."""
    held = tensor.detach().cpu().contiguous()
    carrier = _NUMPY_LACKS.get(held.dtype)
    array = (held if carrier is None else held.view(carrier)).numpy()
    return DenseState(array, str(held.dtype).removeprefix("torch."), str(tensor.device))


def deserialize_tensor(state: DenseState) -> Tensor:
    """A writable tensor, on its device where this process has it, else on the CPU."""
    array, dtype, device = state
    # Ray hands out arrays that lie in shared, read-only memory: writing to them in place would kill the process.
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.view(DTYPES[dtype]).to(_reachable(device))


def serialize_single_tensor(obj: Tensor) -> tuple[str, torch.Size, np.ndarray]:
    """(dtype by name, shape, bytes as uint8) of a dense tensor: verl's form of what ``serialize_tensor`` gives."""
    raw = obj.detach().cpu().flatten().contiguous().view(torch.uint8).numpy()
    return str(obj.dtype).removeprefix("torch."), obj.shape, raw


def deserialize_single_tensor(arr: tuple[str, Sequence[int], Any]) -> Tensor:
    """The writable tensor of (dtype by name, shape, its bytes)."""
    dtype, shape, data = arr
    raw = torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))
    return raw.view(DTYPES[dtype]).reshape(tuple(shape))


def serialize_tensordict(batch: TensorDict) -> BatchState:
    """State of every column; columns of Python objects are left to pickle."""
    columns = {key: serialize_column(column) for key, column in columns_of(batch)}
    return BatchState(tuple(batch.batch_size), None if batch.device is None else str(batch.device), columns)


def deserialize_tensordict(state: BatchState) -> TensorDict:
    """The ``TensorDict`` of a state; jagged columns come back with their ragged dimension and longest row."""
    batch_size, device, columns = state
    ragged = {key: _deserialize_jagged(column) for key, column in columns.items() if isinstance(column, JaggedState)}
    restored = {key: deserialize_column(column) for key, column in columns.items() if key not in ragged}
    ordered = {**dict.fromkeys(columns), **restored, **jagged.share_offsets(ragged)}
    return TensorDict(ordered, batch_size=batch_size, device=None if device is None else _reachable(device))


def serialize_column(column: Any) -> Any:
    """State of a dense or jagged tensor or of a ``TensorDict``; Python objects stay as they are."""
    if jagged.is_jagged(column):
        values, segments = jagged.unjag(column)
        return JaggedState(serialize_tensor(values), serialize_tensor(segments.offsets), jagged.ragged_dim(column))
    if isinstance(column, Tensor):
        if column.is_nested:
            raise LayoutError(f"a nested tensor of layout {column.layout} cannot be sent; rebuild it as torch.jagged")
        return serialize_tensor(column)
    if isinstance(column, TensorDict):
        return serialize_tensordict(column)
    return column  # NonTensorData and NonTensorStack pickle themselves


def deserialize_column(state: Any) -> Any:
    """The inverse of ``serialize_column``."""
    if isinstance(state, DenseState):
        return deserialize_tensor(state)
    if isinstance(state, JaggedState):
        return _deserialize_jagged(state)
    return deserialize_tensordict(state) if isinstance(state, BatchState) else state


def _deserialize_jagged(state: JaggedState) -> Tensor:
    return jagged.jagged(
        deserialize_tensor(state.values), Segments(deserialize_tensor(state.offsets)), state.ragged_dim
    )


def _reachable(device: str) -> torch.device:
    wanted = torch.device(device)
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        return torch.device("cpu")
    return wanted
