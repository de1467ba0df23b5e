import json
from collections import OrderedDict

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from compat.disk import FORMAT
from compat.errors import ColumnTypeError, DataProtoError
from compat.jagged import jagged
from compat.protocol import DataProto
from compat.tensordict_utils import assign_non_tensor, get
from shared_algos.segments import Segments


@pytest.fixture
def through_disk(tmp_path):
    def save_and_load(data: DataProto) -> DataProto:
        data.save_to_disk(tmp_path / "data.pkl")
        return DataProto.load_from_disk(str(tmp_path / "data.pkl"))

    return save_and_load


def test_every_kind_of_column_comes_back(through_disk):
    segments = Segments.from_lengths([2, 0, 1])
    tensors = {
        "half": torch.rand(3, 2).bfloat16(),
        "ids": torch.arange(12).view(3, 4)[:, ::2],
        "nothing": torch.zeros(3, 0),
        "ragged": jagged(torch.arange(3.0), segments),
        "positions": jagged(torch.arange(6).view(2, 3), segments, ragged_dim=2),
        "inner": TensorDict({"a": torch.arange(3)}, batch_size=3),
    }
    batch = assign_non_tensor(TensorDict(tensors, batch_size=3), names=["a", "b", None], shared={"k": 1})
    arrays = {
        "uid": np.array(["u0", "u1", "ü"], dtype=object),
        "text": np.array(["a", "bb", ""]),
        "big_endian": np.arange(3, dtype=">i4"),
        "days": np.array(["2024-01-01", "NaT", "2025-02-02"], dtype="M8[D]"),
        "objects": np.array([[1, None], [(2,), {"a": 1}], ["x", 1.5]], dtype=object),
    }
    back = through_disk(DataProto(batch, arrays))
    for key in ("half", "ids", "nothing"):
        assert back.batch[key].dtype == tensors[key].dtype
        assert torch.equal(back.batch[key], tensors[key])
    for key in ("ragged", "positions"):
        rows = zip(back.batch[key].unbind(), tensors[key].unbind(), strict=True)
        assert all(torch.equal(mine, other) for mine, other in rows)
    assert back.batch["inner"]["a"].tolist() == [0, 1, 2]
    assert get(back.batch, "names") == ["a", "b", None]
    assert get(back.batch, "shared") == {"k": 1}
    for key, array in arrays.items():
        assert back.non_tensor_batch[key].dtype == array.dtype
        np.testing.assert_array_equal(back.non_tensor_batch[key], array)
    back.batch["ids"] += 1  # writable
    back.non_tensor_batch["big_endian"][0] = 7


META_INFO = {
    "plain": [None, True, 1, 1.5, "text", {"nested": [1]}],
    "odd_keys": {1: "a", ("b", 2): "c", "$tuple": [1]},
    "ordered": OrderedDict(b=1, a=2),
    "collections": [(1, (2,)), {1, 2}, frozenset({"x"}), range(2, 8, 3), slice(None, 2)],
    "numbers": [10**30, float("inf"), 1 - 2j, np.float32(1.5), np.int64(7), np.str_("ab"), np.bool_(True)],
    "bytes": b"\x00\xff",
    "torch": [torch.float16, torch.device("cpu"), torch.Size([1, 2])],
    "lone_surrogate": "\ud800",
}


@pytest.mark.parametrize("key", META_INFO)
def test_meta_info_comes_back_with_its_types(through_disk, key):
    back = through_disk(DataProto(meta_info={key: META_INFO[key]})).meta_info[key]
    assert back == META_INFO[key]
    assert repr(back) == repr(META_INFO[key])


def test_tensors_and_arrays_in_meta_info_come_back(through_disk):
    back = through_disk(DataProto(meta_info={"t": [torch.ones(2), {"a": np.array(3)}], "nan": float("nan")})).meta_info
    assert back["t"][0].tolist() == [1, 1]
    assert back["t"][1]["a"].shape == ()
    assert np.isnan(back["nan"])


def test_no_rows_and_no_columns_come_back(through_disk):
    assert through_disk(DataProto()) == DataProto()
    empty = through_disk(DataProto(TensorDict({}, batch_size=3)))
    assert len(empty) == 3


def test_what_is_not_data_is_named_and_nothing_is_written(tmp_path):
    loop: list = []
    loop.append(loop)
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    bad = {"a function": len, "an object": object(), "a record": np.zeros(1, dtype=[("a", int)]), "itself": loop}
    for name, value in {**bad, "too deep": deep}.items():
        with pytest.raises(ColumnTypeError, match=r"^meta_info\['here'\]\[1\]"):
            DataProto(meta_info={"here": [0, value]}).save_to_disk(tmp_path / "bad")
        assert not (tmp_path / "bad").exists(), name
    with pytest.raises(ColumnTypeError, match=r"non_tensor_batch\['uid'\]\[1\] is a builtins.function"):
        DataProto.from_dict(non_tensors={"uid": ["a", lambda: 0]}).save_to_disk(tmp_path / "bad")


def header_of(path) -> tuple[int, dict]:
    blob = path.read_bytes()
    length = int.from_bytes(blob[:8], "little")
    return length, json.loads(blob[8 : 8 + length])


def test_the_file_is_safetensors_and_json(tmp_path):
    path = tmp_path / "data"
    DataProto.from_dict({"score": torch.ones(2)}, {"uid": ["a", "b"]}).save_to_disk(path)
    header = header_of(path)[1]
    assert header["__metadata__"]["format"] == FORMAT
    assert header["0"]["dtype"] == "F32"
    assert json.loads(header["__metadata__"]["content"])["non_tensor_batch"] == {"uid": {"$objects": [[2], ["a", "b"]]}}


def test_damaged_and_other_files_are_refused(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "data"
    DataProto.from_dict({"score": torch.arange(64)}, {"uid": [str(row) for row in range(64)]}).save_to_disk(path)
    whole = path.read_bytes()
    length = header_of(path)[0]
    for end in (0, 5, 9, length // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(DataProtoError, match=str(path)):
            DataProto.load_from_disk(path)
    path.write_bytes(whole.replace(b"$objects", b"$program"))
    with pytest.raises(DataProtoError, match="no kind of value '\\$program'"):
        DataProto.load_from_disk(path)
    save_file({"a": torch.ones(1)}, path)
    with pytest.raises(DataProtoError, match="did not write it"):
        DataProto.load_from_disk(path)
    with pytest.raises(FileNotFoundError):
        DataProto.load_from_disk(tmp_path / "missing")
