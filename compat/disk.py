"""``DataProto`` in a file: a safetensors file whose header holds the rest as JSON. Reading one runs nothing.

Arrays are safetensors entries, ``0``, ``1``, ...; tensors are such arrays with their dtype and device. Everything else
is JSON, in which an object with one key that begins with ``$`` stands for what JSON lacks, for example ``{"$tuple": [1,
2]}``. Files that verl wrote are pickles; ``read_state`` hands those to ``compat.old_pickles``.
"""

from __future__ import annotations

import base64
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch import Tensor

from compat.errors import ColumnTypeError, DataProtoError
from compat.old_pickles import State, read_old_pickle
from compat.serialization import (
    DTYPES,
    BatchState,
    DenseState,
    JaggedState,
    deserialize_column,
    deserialize_tensordict,
    serialize_column,
    serialize_tensordict,
)
from compat.tensordicts import object_column
from runtime.arrays import object_array

FORMAT = "verlift.dataproto.1"
_HEADER_LENGTH = 8
"""A safetensors file begins with the length of its JSON header in 8 bytes."""


def write_state(path: str | Path, state: State) -> None:
    """Write batch, non_tensor_batch and meta_info to ``path``.

    Raises ``ColumnTypeError`` naming the place of a value that is not a tensor, an array, a number, text or a plain
    container of such; nothing is then written.
    """
    batch, arrays, meta_info = state
    writer = _Writer()
    content = {
        "batch": writer.encode(None if batch is None else serialize_tensordict(batch), "batch"),
        "non_tensor_batch": writer.encode(arrays, "non_tensor_batch"),
        "meta_info": writer.encode(meta_info, "meta_info"),
    }
    save_file(writer.arrays, path, metadata={"format": FORMAT, "content": json.dumps(content)})


def read_state(path: str | Path) -> State:
    """Batch, non_tensor_batch and meta_info of a file that ``write_state`` or an old ``save_to_disk`` wrote.

    Raises ``PickleRefusedError`` for a pickle that would run code, ``DataProtoError`` for a damaged file or another
    kind of file.
    """
    with open(path, "rb") as file:
        start = file.read(_HEADER_LENGTH + 1)
    if start[_HEADER_LENGTH:] != b"{":
        return read_old_pickle(path)
    try:
        with safe_open(path, "np") as arrays:
            header = arrays.metadata() or {}
            if header.get("format") != FORMAT:
                raise DataProtoError(f"{path} is a safetensors file, but DataProto.save_to_disk did not write it")
            content = _Reader(arrays.get_tensor).decode(json.loads(header["content"]))
    except (SafetensorError, ValueError, KeyError, TypeError, IndexError) as error:
        if isinstance(error, DataProtoError):
            raise
        raise DataProtoError(f"{path} is damaged: {error}; save it again") from error
    batch = content["batch"]
    return None if batch is None else deserialize_tensordict(batch), content["non_tensor_batch"], content["meta_info"]


class _Kind(NamedTuple):
    """A type that JSON lacks: its tag, the parts that say its value, and how those make it again."""

    tag: str
    parts: Callable[[Any], Iterable[Any]]
    make: Callable[..., Any]


_KINDS: dict[type, _Kind] = {
    tuple: _Kind("$tuple", iter, lambda *items: items),
    set: _Kind("$set", iter, lambda *items: set(items)),
    frozenset: _Kind("$frozenset", iter, lambda *items: frozenset(items)),
    dict: _Kind("$dict", lambda value: map(list, value.items()), lambda *items: dict(items)),
    OrderedDict: _Kind("$ordered", lambda value: map(list, value.items()), lambda *items: OrderedDict(items)),
    complex: _Kind("$complex", lambda value: (value.real, value.imag), complex),
    bytes: _Kind("$bytes", lambda value: (base64.b64encode(value).decode(),), base64.b64decode),
    slice: _Kind("$slice", lambda value: (value.start, value.stop, value.step), slice),
    range: _Kind("$range", lambda value: (value.start, value.stop, value.step), range),
    torch.dtype: _Kind("$dtype", lambda value: (str(value).removeprefix("torch."),), DTYPES.__getitem__),
    torch.device: _Kind("$device", lambda value: (str(value),), torch.device),
    torch.Size: _Kind("$size", iter, lambda *sizes: torch.Size(sizes)),
    Tensor: _Kind("$tensor", lambda value: (serialize_column(value),), deserialize_column),
    TensorDict: _Kind("$tensordict", lambda value: (serialize_tensordict(value),), deserialize_tensordict),
    NonTensorData: _Kind("$shared", lambda value: (value.data,), NonTensorData),
    NonTensorStack: _Kind("$column", lambda value: value.tolist(), lambda *rows: object_column(rows)),
    BatchState: _Kind("$batch_state", iter, BatchState),
    DenseState: _Kind("$dense_state", iter, DenseState),
    JaggedState: _Kind("$jagged_state", iter, JaggedState),
}
_MAKERS = {kind.tag: kind.make for kind in _KINDS.values()}


class _Writer:
    """Turns values into JSON and puts the arrays among them aside."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._open: list[int] = []

    def encode(self, value: Any, place: str) -> Any:
        """JSON of ``value``; ``place`` names it in errors, such as ``meta_info['config']``."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if id(value) in self._open:
            raise ColumnTypeError(f"{place} contains itself, which cannot be saved")
        self._open.append(id(value))
        try:
            return self._encode(value, place)
        except RecursionError:
            raise ColumnTypeError(f"{place[:80]}... is nested too deep to be saved") from None
        finally:
            self._open.pop()

    def _encode(self, value: Any, place: str) -> Any:
        if type(value) is list:
            return [self.encode(item, f"{place}[{number}]") for number, item in enumerate(value)]
        if type(value) is dict and all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.encode(item, f"{place}[{key!r}]") for key, item in value.items()}
        if isinstance(value, np.ndarray | np.generic):
            return self._encode_array(value, place)
        kind = _KINDS.get(Tensor if isinstance(value, Tensor) else type(value))
        if kind is None:
            raise ColumnTypeError(
                f"{place} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be saved: keep "
                "tensors, arrays, numbers, text and containers of such in a DataProto that goes to disk"
            )
        return {kind.tag: [self.encode(part, place) for part in kind.parts(value)]}

    def _encode_array(self, value: np.ndarray | np.generic, place: str) -> Any:
        array = np.asarray(value)
        if array.dtype == object:
            rows = [self.encode(item, f"{place}[{row}]") for row, item in enumerate(array.flat)]
            return {"$objects": [list(array.shape), rows]}
        if array.dtype.hasobject or array.dtype.names is not None:
            raise ColumnTypeError(f"{place} is an array of records; save its fields one by one")
        name = str(len(self.arrays))
        flat = np.ascontiguousarray(array).reshape(-1)
        numeric = array.dtype.kind in "biuf" and array.dtype.itemsize <= 8 and array.dtype.isnative
        self.arrays[name] = flat if numeric else flat.view(np.uint8)
        tag = "$array" if isinstance(value, np.ndarray) else "$scalar"
        return {tag: [name, array.dtype.str, list(array.shape)]}


class _Reader:
    """The inverse of ``_Writer``."""

    def __init__(self, stored: Callable[[str], np.ndarray]) -> None:
        self._stored = stored

    def decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        tag = next(iter(value), "")
        if not tag.startswith("$"):
            return {key: self.decode(item) for key, item in value.items()}
        return self._make(tag, value[tag])

    def _make(self, tag: str, parts: list[Any]) -> Any:
        if tag == "$objects":
            return object_array(self.decode(parts[1])).reshape(parts[0])
        if tag in ("$array", "$scalar"):
            name, dtype, shape = parts
            array = self._stored(name).view(np.dtype(dtype)).reshape(shape)
            return array if tag == "$array" else array[()]
        if tag not in _MAKERS:
            raise DataProtoError(f"there is no kind of value {tag!r}; a newer version may have written the file")
        return _MAKERS[tag](*map(self.decode, parts))
