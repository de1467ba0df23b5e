"""Files that verl's ``DataProto.save_to_disk`` wrote, read without running anything that is in them.

Such a file is a pickle, and a pickle can call any function it names. Here a name is looked up in a table of stand-ins,
and any other ends the load with ``PickleRefusedError``. The stand-ins are of this module, so that not even numpy's own
way of rebuilding arrays sees what the file says: it would trust a dtype that is made up. Tensors lie in the pickle as
what ``torch.save`` wrote, a second pickle, which ``torch.load(weights_only=True)`` reads.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from compat import jagged
from compat.columns import columns_of, from_columns
from compat.errors import DataProtoError, PickleRefusedError
from compat.serialization import (
    DTYPES,
    BatchState,
    DenseState,
    JaggedState,
    deserialize_single_tensor,
    deserialize_tensordict,
)
from runtime.arrays import object_array
from shared_algos.segments import Segments

State = tuple[TensorDict | None, dict[str, np.ndarray], dict[str, Any]]
"""What ``DataProto`` is made of: batch, non_tensor_batch, meta_info."""


def read_old_pickle(path: str | Path) -> State:
    """The three namespaces of the ``DataProto`` pickled in ``path``, tensors on the CPU.

    Raises ``PickleRefusedError`` naming the global that the file asks for, ``DataProtoError`` when it is damaged or
    holds something else than a ``DataProto``.
    """
    try:
        with open(path, "rb") as file:
            loaded = _Unpickler(file).load()
        if not isinstance(loaded, _SavedDataProto):
            raise DataProtoError(f"it holds a {type(loaded).__name__}, not a DataProto")
        return loaded.settled()
    except PickleRefusedError as error:
        raise PickleRefusedError(f"{path} is not loaded: {error}") from None
    except OSError:
        raise
    except Exception as error:  # anything may come out of bytes that nobody vouches for
        raise DataProtoError(f"{path} cannot be read as a DataProto that was saved: {error}") from error


def read_batch(saved: Any) -> TensorDict | None:
    """The tensors of a pickled ``DataProto`` of any version of verl, or of ours.

    saved: ``None``; our ``BatchState``; the bytes, or in the first versions the ``BytesIO``, that ``torch.save`` wrote;
    or the tuple of ``VERL_DATAPROTO_SERIALIZATION_METHOD=numpy``.
    """
    if saved is None:
        return None
    if isinstance(saved, BatchState):
        return deserialize_tensordict(saved)
    if isinstance(saved, io.BytesIO):
        saved = saved.getvalue()
    if isinstance(saved, bytes):
        batch = _load_torch(saved)
        if not isinstance(batch, TensorDict | None):
            raise DataProtoError(f"its batch is a {type(batch).__name__}, not a TensorDict")
        return None if batch is None else from_columns(dict(columns_of(batch)), batch.batch_size[0], batch.device)
    batch_size, _, columns = saved
    return from_columns({str(key): _read_numpy_column(column) for key, column in columns.items()}, batch_size[0])


def _read_numpy_column(column: Any) -> Tensor:
    if len(column) == 3:
        return deserialize_single_tensor(column)
    rows = [deserialize_single_tensor(row) for row in column[1]]
    return jagged.jagged(torch.cat(rows), Segments.from_lengths([len(row) for row in rows]))


def _load_torch(saved: bytes) -> Any:
    """What ``torch.save`` wrote, on the CPU; only tensors, storages, plain containers and tensordicts."""
    try:
        with warnings.catch_warnings():  # about storages, which the user did not choose
            warnings.simplefilter("ignore")
            return torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = next((line.strip() for line in str(error).splitlines() if "GLOBAL" in line), str(error))
        raise PickleRefusedError(f"its tensors were saved with something that could run code: {reason}") from None


class _Sealed(type):
    """A class that a pickle cannot change: it may set attributes on whatever a name in it stands for."""

    def __setattr__(cls, name: str, value: Any) -> NoReturn:
        raise PickleRefusedError(f"it sets the attribute {name!r} of a class")


class _SavedDataProto(metaclass=_Sealed):
    """The pickled state of a ``DataProto``."""

    __slots__ = ("state",)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def settled(self) -> State:
        batch, arrays, meta_info = _settle(self.state)
        return read_batch(batch), arrays, meta_info


class _SavedBuffer(metaclass=_Sealed):
    """A pickled ``BytesIO``."""

    __slots__ = ("content",)

    def __setstate__(self, state: Any) -> None:
        self.content = bytes(state[0])


class _SavedArray(metaclass=_Sealed):
    """A pickled array: (version, shape, dtype, Fortran order, bytes or list of objects)."""

    __slots__ = ("state",)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def settled(self, known: dict[int, tuple[Any, Any]]) -> np.ndarray:
        _, shape, dtype, fortran, data = self.state
        order: Any = "F" if fortran else "C"
        if isinstance(data, list):
            return object_array([_settle(item, known) for item in data]).reshape(shape, order=order)
        return _array_of(data, dtype, shape, order)


class _SavedDtype(metaclass=_Sealed):
    """A pickled dtype of numbers, text or times: its code, such as ``i8``, and later its byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: str, *_: bool) -> None:
        self.code, self.order = str(code), "="

    def __setstate__(self, state: Any) -> None:
        if state[2:5] != (None, None, None):
            raise PickleRefusedError("it has an array of records; save its fields one by one")
        self.order = {"|": "="}.get(state[1], state[1])
        if self.code[0] in "mM" and len(state) > 8:
            unit, count = state[8][1][:2]
            self.code += f"[{int(count)}{bytes(unit).decode()}]"

    def settled(self, *_: Any) -> np.dtype:
        order: Any = self.order
        dtype = np.dtype(self.code).newbyteorder(order)
        if dtype.hasobject:
            raise PickleRefusedError("it has raw bytes where Python objects belong")
        return dtype


class _Function:
    """A function that a pickle may call and cannot change."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run

    def __call__(self, *arguments: Any) -> Any:
        return self.run(*arguments)

    def __setstate__(self, state: Any) -> NoReturn:
        raise PickleRefusedError("it changes a function")


class _SealedBatch(BatchState, metaclass=_Sealed):
    """A pickled ``BatchState``; its fields are as in ``compat.serialization``."""


class _SealedDense(DenseState, metaclass=_Sealed):
    """A pickled ``DenseState``."""


class _SealedJagged(JaggedState, metaclass=_Sealed):
    """A pickled ``JaggedState``."""


_STATES: dict[type, type] = {_SealedBatch: BatchState, _SealedDense: DenseState, _SealedJagged: JaggedState}


def _settle(value: Any, known: dict[int, tuple[Any, Any]] | None = None) -> Any:
    """``value`` with every stand-in replaced by what it stands for; lists and dicts may contain themselves.

    known: what was met before, by id, kept alive beside its replacement.
    """
    known = {} if known is None else known
    if id(value) in known:
        return known[id(value)][1]
    settled: Any
    if isinstance(value, _SavedArray | _SavedDtype):
        settled = value.settled(known)
    elif isinstance(value, _SavedBuffer):
        settled = io.BytesIO(value.content)
    elif isinstance(value, tuple):
        settled = _settle_tuple(value, known)
    else:
        known[id(value)] = (value, value)
        return _settle_in_place(value, known)
    known[id(value)] = (value, settled)
    return settled


def _settle_tuple(value: tuple[Any, ...], known: dict[int, tuple[Any, Any]]) -> tuple[Any, ...]:
    items = [_settle(item, known) for item in value]
    if type(value) in _STATES:
        return _STATES[type(value)](*items)
    return value if all(new is old for new, old in zip(items, value, strict=True)) else type(value)(items)


def _settle_in_place(value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    if isinstance(value, _SavedDataProto | _Function | type):
        raise PickleRefusedError(f"it has a {value} among its values; only data can be loaded")
    if isinstance(value, dict | set | frozenset) and any(_settle(key, known) is not key for key in value):
        raise PickleRefusedError(f"it has a {type(value).__name__} whose keys are not plain values")
    if isinstance(value, list):
        value[:] = [_settle(item, known) for item in value]
    elif isinstance(value, dict):
        value.update({key: _settle(item, known) for key, item in value.items()})
    return value


def _array_of(data: Any, dtype: _SavedDtype, shape: Any, order: Any = "C", *_: Any) -> np.ndarray:
    """A writable array of raw bytes."""
    return np.frombuffer(bytearray(data), dtype.settled()).reshape(shape, order=order)


def _scalar_of(dtype: _SavedDtype, data: bytes) -> Any:
    return np.frombuffer(data, dtype.settled(), 1)[0]


def _tensor_of(
    storage: Any, offset: int, size: tuple[int, ...], stride: tuple[int, ...], requires_grad: bool, *_: Any
) -> Tensor:
    """A tensor on a loaded storage; hooks and other attributes are left out."""
    empty = torch.empty(0, dtype=storage.dtype)
    # storage.untyped() is the public name and warns
    return empty.set_(storage._untyped_storage, offset, size, stride).requires_grad_(bool(requires_grad))


def _encode_latin1(text: str, encoding: str) -> bytes:
    """How pickles of protocol 2 spell bytes."""
    if encoding != "latin1":
        raise PickleRefusedError(f"it asks for the codec {encoding!r}")
    return text.encode("latin1")


_STAND_INS: dict[str, Any] = {
    **{f"torch.{name}": dtype for name, dtype in DTYPES.items()},
    **dict.fromkeys(("verl.protocol.DataProto", "compat.protocol.DataProto"), _SavedDataProto),
    "compat.serialization.BatchState": _SealedBatch,
    "compat.serialization.DenseState": _SealedDense,
    "compat.serialization.JaggedState": _SealedJagged,
    "numpy.ndarray": _SavedArray,
    "numpy.dtype": _SavedDtype,
    "torch.storage._load_from_bytes": _Function(_load_torch),
    "torch._utils._rebuild_tensor_v2": _Function(_tensor_of),
    "torch.Size": _Function(torch.Size),
    "torch.device": _Function(torch.device),
    "collections.OrderedDict": OrderedDict,
    "collections.defaultdict": defaultdict,
    "builtins.set": set,
    "builtins.frozenset": frozenset,
    "builtins.complex": complex,
    "builtins.slice": slice,
    "_io.BytesIO": _SavedBuffer,
    "_codecs.encode": _Function(_encode_latin1),
}
for _core in ("numpy._core", "numpy.core"):
    _STAND_INS[f"{_core}.multiarray._reconstruct"] = _Function(lambda *_: _SavedArray())
    _STAND_INS[f"{_core}.multiarray.scalar"] = _Function(_scalar_of)
    _STAND_INS[f"{_core}.numeric._frombuffer"] = _Function(_array_of)


class _Unpickler(pickle.Unpickler):
    """An unpickler that knows the stand-ins and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in of a name; ``PickleRefusedError`` names any other."""
        module = {"__builtin__": "builtins"}.get(module, module)
        stand_in = _STAND_INS.get(f"{module}.{name}")
        if stand_in is None:
            raise PickleRefusedError(
                f"it asks for {module}.{name}, which could run code; allowed are tensors, numpy arrays, plain "
                "containers and DataProto. Where you trust the file, load it once with pickle and save it again with "
                "DataProto.save_to_disk"
            )
        return stand_in
