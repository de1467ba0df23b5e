"""Pickles as verl's ``save_to_disk`` wrote them, and pickles that would run code: those are refused, unrun."""

import builtins
import contextlib
import functools
import importlib
import io
import os
import pickle
import sys
import types
import warnings

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from compat.errors import DataProtoError, PickleRefusedError
from compat.protocol import DataProto
from compat.serialization import DenseState, serialize_single_tensor


class OldDataProto:
    """Pickles as ``verl.protocol.DataProto`` with the state it is given."""

    def __init__(self, *state):
        self.state = state

    def __getstate__(self):
        return self.state

    def __setstate__(self, state):
        self.state = state


OldDataProto.__module__, OldDataProto.__qualname__ = "verl.protocol", "DataProto"


class Call:
    """Pickles as a call of ``function``."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Where a test puts its pickle; meanwhile the name ``verl.protocol.DataProto`` can be pickled."""
    modules = {name: types.ModuleType(name) for name in ("verl", "verl.protocol")}
    modules["verl.protocol"].DataProto = OldDataProto
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return tmp_path / "data.pkl"


def torch_bytes(value) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def table(consolidated: bool = True) -> TensorDict:
    batch = TensorDict({"ids": torch.arange(4).view(2, 2), "half": torch.ones(2).bfloat16()}, batch_size=2)
    return batch.consolidate() if consolidated else batch


ARRAYS = {
    "uid": np.array(["a", "b"], dtype=object),
    "turns": np.arange(2, dtype=np.int32),
    "swapped": np.arange(2, dtype=">f8"),
    "text": np.array(["x", "yy"]),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "days": np.array(["2024-01-01", "2024-01-02"], dtype="M8[D]"),
    "inner": np.array([{"a": np.arange(2)}, [np.float32(1.5), (1, {2})]], dtype=object),
}
META_INFO = {"t": torch.ones(2), "dtype": torch.float32, "size": torch.Size([2]), "np": np.int64(3), "flag": {True}}
BATCHES = {
    "consolidated": lambda: torch_bytes(table()),
    "plain": lambda: torch_bytes(table(consolidated=False)),
    "buffer": lambda: io.BytesIO(torch_bytes(table())),
    "numpy": lambda: ((2,), "cpu", {key: serialize_single_tensor(column) for key, column in table().items()}),
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", BATCHES)
def test_every_form_that_verl_wrote_is_read(path, kind, protocol):
    path.write_bytes(pickle.dumps(OldDataProto(BATCHES[kind](), dict(ARRAYS), dict(META_INFO)), protocol))
    data = DataProto.load_from_disk(path)
    assert type(data) is DataProto
    assert data.batch["ids"].tolist() == [[0, 1], [2, 3]]
    assert data.batch["half"].dtype == torch.bfloat16
    for key, array in ARRAYS.items():
        assert data.non_tensor_batch[key].dtype == array.dtype
        assert repr(data.non_tensor_batch[key].tolist()) == repr(array.tolist())
    assert torch.equal(data.meta_info.pop("t"), META_INFO["t"])
    assert data.meta_info == {key: value for key, value in META_INFO.items() if key != "t"}


def test_no_batch_shared_lists_and_loops_are_read(path):
    shared = [1]
    loop = {"shared": [shared, shared]}
    loop["self"] = loop
    path.write_bytes(pickle.dumps(OldDataProto(None, {}, loop)))
    meta_info = DataProto.load_from_disk(path).meta_info
    assert meta_info["shared"][0] is meta_info["shared"][1]
    assert meta_info["self"] is meta_info


def test_our_own_pickles_are_read_too(path):
    data = DataProto.from_dict({"a": torch.arange(2)}, {"uid": ["x", "y"]}, {"k": 1})
    path.write_bytes(pickle.dumps(data))
    assert DataProto.load_from_disk(path).union(data).get_data_info() == data.get_data_info()


@pytest.mark.usefixtures("path")
def test_the_state_of_an_old_pickle_is_understood_by_pickle_itself(monkeypatch):
    blob = pickle.dumps(OldDataProto(torch_bytes(table()), {}, {"k": 1}))
    monkeypatch.setattr(sys.modules["verl.protocol"], "DataProto", DataProto)
    assert pickle.loads(blob).batch["ids"].tolist() == [[0, 1], [2, 3]]


# --- what would run code ----------------------------------------------------------------------------------------------


class Planted:
    """Pickles as a class of a recipe whose ``__setstate__`` does something."""

    def __setstate__(self, path):
        open(path, "w").close()

    def __getstate__(self):
        return self.path


def planted(path: str) -> Planted:
    made = Planted()
    made.path = path
    return made


def evil_calls(marker):
    """For each name that the error must say, an object whose unpickling creates the file ``marker``."""
    write = f"open({str(marker)!r}, 'w').close()"
    touch = f"touch {marker}"
    return {
        "system": Call(os.system, touch),
        "eval": Call(eval, write),
        "exec": Call(exec, write),
        "open": Call(open, str(marker), "w"),
        "__import__": Call(builtins.__import__, "planted_module"),
        "import_module": Call(importlib.import_module, "planted_module"),
        "partial": Call(functools.partial(os.system, touch)),
        "Planted": planted(str(marker)),
    }


def places(value):
    """States of a DataProto that hold ``value`` at each place where one can be."""
    held = np.empty(1, dtype=object)
    held[0] = value
    nested = np.empty(1, dtype=object)
    nested[0] = {"deep": [(held,)]}
    return {
        "meta_info": (None, {}, {"deep": [{"er": (value,)}]}),
        "key": (None, {}, {(1, value): 2}),
        "object array": (None, {"uid": held}, {}),
        "array in an array": (None, {"uid": nested}, {}),
        "instead of the batch": (value, {}, {}),
        "torch.save": (torch_bytes(value), {}, {}),
        "tensordict": (torch_bytes({"a": [value]}), {}, {}),
        "storage": (None, {}, {"t": Call(torch.storage._load_from_bytes, pickle.dumps(value, 2))}),
        "storage of torch.save": (None, {}, {"t": Call(torch.storage._load_from_bytes, torch_bytes(value))}),
        "another DataProto": (None, {}, {"inner": OldDataProto(value, {}, {})}),
    }


NAMES = list(evil_calls(""))
PLACES = list(places(None))


@pytest.fixture
def marker(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "planted_module.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.delitem(sys.modules, "planted_module", raising=False)
    return tmp_path / "ran"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", NAMES)
def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(path, marker, name, place):
    path.write_bytes(pickle.dumps(OldDataProto(*places(evil_calls(marker)[name])[place])))
    with pytest.raises(PickleRefusedError, match=rf"{path.name} is not loaded: .*\b{name}\b"):
        DataProto.load_from_disk(path)
    assert not marker.exists()
    assert "planted_module" not in sys.modules


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("path")
def test_the_planted_code_runs_where_nothing_refuses_it(marker, name):
    pickle.loads(pickle.dumps(OldDataProto(*places(evil_calls(marker)[name])["object array"])))
    assert marker.exists()


def test_a_refusal_says_what_to_do(path, marker):
    path.write_bytes(pickle.dumps(OldDataProto(None, {}, {"a": Call(os.system, f"touch {marker}")})))
    with pytest.raises(PickleRefusedError, match=r"asks for posix.system, which could run code.*save it again") as info:
        DataProto.load_from_disk(path)
    assert isinstance(info.value, DataProtoError | pickle.UnpicklingError)


def test_a_torchscript_archive_is_refused(path):
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), buffer)
    path.write_bytes(pickle.dumps(OldDataProto(buffer.getvalue(), {}, {})))
    with pytest.raises(DataProtoError):
        DataProto.load_from_disk(path)


HAND_WRITTEN = {
    "a function behind dots": b"\x80\x04\x8c\rverl.protocol\x8c\x1cDataProto.__init__.__globals__\x93.",
    "getattr": b"cbuiltins\ngetattr\n(cnumpy\nndarray\nS'__reduce__'\ntR.",
    "the INST opcode": b"(S'touch ran'\nios\nsystem\n.",
    "an attribute of a class": b"\x80\x02ccompat.serialization\nDenseState\nN}X\x05\x00\x00\x00arrayK\x01s\x86b.",
    "the state of a class": b"\x80\x02cverl.protocol\nDataProto\n}X\x05\x00\x00\x00stateK\x01sb.",
    "the state of a function": b"\x80\x02ctorch\nSize\n}X\x03\x00\x00\x00runK\x01sb.",
    "an object by its bytes": b"\x80\x02cnumpy._core.numeric\n_frombuffer\n(U\x08\x01\x00\x00\x00\x00\x00\x00\x00"
    b"cnumpy\ndtype\nU\x02O8\x85RK\x01\x85U\x01CtR.",
    "an array of its own making": b"\x80\x02cnumpy\nndarray\nK\x01\x85R.",
    "another codec": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",
    "a persistent id": b"Pfile\n.",
    "an extension": b"\x80\x02\x82\x01.",
    "nothing": b"",
    "text": b"hello",
    "half a pickle": pickle.dumps([1, 2, 3])[:-2],
    "a list": pickle.dumps([1]),
    "a state of another kind": b"\x80\x02cverl.protocol\nDataProto\n)\x81K\x01b.",
    "no state": b"\x80\x02cverl.protocol\nDataProto\n)\x81.",
}


@pytest.mark.parametrize("kind", HAND_WRITTEN)
def test_a_pickle_written_by_hand_ends_in_a_typed_error_and_changes_nothing(tmp_path, kind):
    (tmp_path / "data").write_bytes(HAND_WRITTEN[kind])
    before = dict(vars(DenseState))
    with pytest.raises(DataProtoError, match=str(tmp_path)):
        DataProto.load_from_disk(tmp_path / "data")
    assert dict(vars(DenseState)) == before
    assert torch.Size([1]) == (1,)


def test_arrays_of_records_are_refused(path):
    path.write_bytes(pickle.dumps(OldDataProto(None, {"r": np.zeros(2, dtype=[("a", "i4"), ("b", "O")])}, {})))
    with pytest.raises(PickleRefusedError, match="records"):
        DataProto.load_from_disk(path)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_pickles_end_in_a_typed_error_or_a_batch(path, seed):
    blob = bytearray(pickle.dumps(OldDataProto(torch_bytes(table()), dict(ARRAYS), dict(META_INFO))))
    random = np.random.default_rng(seed)
    for _ in range(20):
        damaged = bytearray(blob)
        for place in random.integers(0, len(blob), 3):
            damaged[place] = random.integers(0, 256)
        path.write_bytes(damaged)
        with contextlib.suppress(DataProtoError):
            DataProto.load_from_disk(path)
