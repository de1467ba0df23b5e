import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from compat.errors import (
    ColumnTypeError,
    DataProtoError,
    MissingColumnError,
    UnequalSplitError,
    UnionConflictError,
)
from compat.protocol import (
    DataProto,
    fold_batch_dim,
    unfold_batch_dim,
    union_numpy_dict,
    union_tensor_dict,
)


def test_select_takes_the_named_columns_and_copies_no_tensor(make):
    data = make(2)
    selected = data.select(["ids"], ["uid", "nothing"], [])
    assert selected.batch["ids"] is data.batch["ids"]
    assert list(selected.batch.keys()) == ["ids"]
    assert list(selected.non_tensor_batch) == ["uid"]
    assert selected.meta_info == {}
    deep = data.select(deepcopy=True)
    deep.meta_info["temperature"] = 1.0
    deep.non_tensor_batch["messages"][0][0]["role"] = "system"
    assert data.meta_info["temperature"] == 0.7
    assert data.non_tensor_batch["messages"][0][0]["role"] == "user"
    with pytest.raises(MissingColumnError, match=r"batch has no \['values'\]; it has \['ids'"):
        data.select(["values"])


def test_pop_moves_columns_or_nothing(make):
    data = make(2)
    with pytest.raises(MissingColumnError, match=r"meta_info has no \['nothing'\]"):
        data.pop(["ids"], ["uid"], ["nothing"])
    popped = data.pop(["ids", "ragged"], ["uid"], ["temperature"])
    assert set(popped.batch.keys()) == {"ids", "ragged"}
    assert popped.meta_info == {"temperature": 0.7}
    assert set(data.batch.keys()) == {"score", "flag"}
    assert set(data.non_tensor_batch) == {"turns", "messages"}
    assert len(data.pop(["score", "flag"])) == len(data) == 2


def test_rename_is_in_place_and_simultaneous(make):
    data = make(2)
    ids, score = data.batch["ids"], data.batch["score"]
    assert data.rename(["ids", "score"], ["score", "ids"]) is data
    assert data.batch["score"] is ids
    assert data.batch["ids"] is score
    data.rename("score", "tokens")
    assert data.batch["tokens"] is ids
    with pytest.raises(MissingColumnError, match="nothing"):
        data.rename("nothing", "x")
    with pytest.raises(ColumnTypeError, match="1 old and 2 new"):
        data.rename("ids", ["x", "y"])
    with pytest.raises(ColumnTypeError, match="got tuple"):
        data.rename(("ids",), ("x",))


def test_a_column_that_keeps_its_name_keeps_its_place(make):
    data = make(2)
    before = list(data.batch.keys())
    assert list(data.rename(before[0], before[0]).batch.keys()) == before


def test_assignment_adds_a_column_of_the_right_size(make):
    data = make(2)
    data["token_level_scores"] = torch.ones(2, 4)
    data["source"] = np.array(["a", "b"], dtype=object)
    assert data.batch["token_level_scores"].sum() == 8
    assert data.non_tensor_batch["source"].tolist() == ["a", "b"]
    with pytest.raises(DataProtoError, match=r"'x' has shape \(3,\) in a batch of 2 rows"):
        data["x"] = torch.zeros(3)
    with pytest.raises(ColumnTypeError, match="got list"):
        data["x"] = [1, 2]
    empty = DataProto()
    empty["a"] = torch.zeros(3)
    assert len(empty) == 3


def test_union_adds_columns_in_place(make):
    data, added = make(3), DataProto.from_dict({"advantages": torch.ones(3)}, {"source": ["a", "b", "c"]}, {"step": 1})
    assert data.union(added) is data
    assert data.batch["advantages"].tolist() == [1, 1, 1]
    assert data.non_tensor_batch["source"].tolist() == ["a", "b", "c"]
    assert data.meta_info == {"temperature": 0.7, "step": 1}
    assert list(added.batch.keys()) == ["advantages"]


@given(rows=st.integers(0, 5))
@settings(max_examples=10, deadline=None)
def test_union_with_itself_changes_nothing(make, numbers, rows):
    data = make(rows)
    data.batch["values"] = torch.full((rows,), float("nan"))
    data.non_tensor_batch["nan"] = np.full(rows, np.nan)
    data.union(pickle.loads(pickle.dumps(data)))
    assert numbers(data) == list(range(rows))
    assert set(data.batch.keys()) == {"ids", "score", "flag", "ragged", "values"}


def test_union_of_namespaces_that_one_side_lacks():
    objects = DataProto.from_dict(non_tensors={"uid": ["a", "b"]})
    tensors = DataProto.from_dict({"a": torch.zeros(2)})
    assert set(copy.copy(objects).union(tensors).batch.keys()) == {"a"}
    assert list(tensors.union(DataProto(meta_info={"metrics": {"loss": 1}})).batch.keys()) == ["a"]
    assert len(DataProto().union(tensors)) == 2
    with pytest.raises(DataProtoError, match="2 and 3 rows"):
        objects.union(DataProto.from_dict({"a": torch.zeros(3)}))


@pytest.mark.parametrize(
    ("key", "change", "row"),
    [
        ("ids", lambda data: data.batch["ids"][2].fill_(0), 2),
        ("score", lambda data: data.batch.set("score", data.batch["score"].long() * 2), 1),
        ("ids", lambda data: data.batch.set("ids", data.batch["ids"][:, :3]), 0),
        ("ragged", lambda data: data.batch.set("ragged", data[[0, 1, 1, 3]].batch["ragged"]), 2),
        ("uid", lambda data: data.non_tensor_batch["uid"].__setitem__(3, "other"), 3),
        ("messages", lambda data: data.non_tensor_batch["messages"][1].append({}), 1),
        ("turns", lambda data: data.non_tensor_batch.update(turns=np.arange(4, dtype=np.int64)), 0),
    ],
)
def test_a_union_conflict_names_key_and_row_and_changes_nothing(make, numbers, key, change, row):
    data, other = make(4), make(4)
    change(other)
    other.batch["new"] = torch.zeros(4)
    with pytest.raises(UnionConflictError, match=f"column '{key}' .* first differs in row {row}: "):
        data.union(other)
    assert "new" not in data.batch.keys()  # noqa: SIM118
    assert numbers(data) == [0, 1, 2, 3]


def test_union_of_meta_info(make):
    data = make(1, array=np.array([1.0, np.nan]), nested={"t": torch.ones(2)})
    data.union(make(1, array=np.array([1.0, np.nan]), nested={"t": torch.ones(2)}))
    with pytest.raises(UnionConflictError, match=r"meta_info 'temperature' is 0.7 .* and 1.0"):
        data.union(DataProto(meta_info={"temperature": 1.0}))
    with pytest.raises(UnionConflictError, match="'array'"):
        data.union(DataProto(meta_info={"array": np.array([1.0, 2.0])}))


def test_union_helpers():
    left = TensorDict({"a": torch.zeros(2)}, batch_size=2)
    assert union_tensor_dict(left, TensorDict({"b": torch.ones(2)}, batch_size=2)) is left
    assert set(left.keys()) == {"a", "b"}
    with pytest.raises(DataProtoError, match=r"\(2,\) and the other \(3,\)"):
        union_tensor_dict(left, TensorDict({"b": torch.ones(3)}, batch_size=3))
    with pytest.raises(UnionConflictError, match=r"'b' .* row 1: 1.0 .* here, 5.0 .* there"):
        union_tensor_dict(left, TensorDict({"b": torch.tensor([1.0, 5.0])}, batch_size=2))
    assert set(union_numpy_dict({"a": np.zeros(2)}, {"b": np.ones(2)})) == {"a", "b"}


def test_unfold_column_chunks():
    data = DataProto.from_dict(
        {"pairs": torch.arange(8).view(2, 4), "score": torch.tensor([1, 2])}, {"uid": ["a", "b"]}
    )
    unfolded = data.unfold_column_chunks(2, split_keys=["pairs"])
    assert unfolded.batch["pairs"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert unfolded.batch["score"].tolist() == [1, 1, 2, 2]
    assert unfolded.non_tensor_batch["uid"].tolist() == ["a", "a", "b", "b"]
    assert len(data.unfold_column_chunks(2)) == 4
    with pytest.raises(UnequalSplitError, match=r"'pairs' of shape \(2, 4\) does not divide into 3"):
        data.unfold_column_chunks(3, ["pairs"])
    with pytest.raises(IndexError, match="no dim 1"):
        DataProto.from_dict({"flat": torch.arange(2)}).unfold_column_chunks(1, ["flat"])
    arrays = DataProto.from_dict(non_tensors={"pairs": np.arange(8).reshape(2, 4)})
    assert arrays.unfold_column_chunks(2, ["pairs"]).non_tensor_batch["pairs"].tolist() == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]


def test_unfold_is_the_inverse_of_fold():
    data = DataProto.from_dict({"ids": torch.arange(12).view(6, 2)}, {"uid": list("abcdef")})
    folded = fold_batch_dim(data, 3)
    assert len(folded) == 3
    assert folded.batch["ids"].shape == (3, 2, 2)
    assert folded.non_tensor_batch["uid"].tolist() == [["a", "b"], ["c", "d"], ["e", "f"]]
    unfolded = unfold_batch_dim(folded)
    assert torch.equal(unfolded.batch["ids"], data.batch["ids"])
    assert unfolded.non_tensor_batch["uid"].tolist() == list("abcdef")
    with pytest.raises(DataProtoError, match="without columns"):
        unfold_batch_dim(data.select([], []))
    with pytest.raises(UnequalSplitError, match="6 rows into 4"):
        fold_batch_dim(data, 4)
