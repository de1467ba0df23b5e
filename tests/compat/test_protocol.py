import copy
import io
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
from compat.jagged import is_jagged, jagged
from compat.protocol import (
    DataProto,
    DataProtoConfig,
    DataProtoFuture,
    DataProtoItem,
    collate_fn,
    fold_batch_dim,
    pad_dataproto_to_divisor,
    unfold_batch_dim,
    union_numpy_dict,
    union_tensor_dict,
    unpad_dataproto,
)
from runtime.errors import BatchSizeError
from shared_algos.segments import Segments


def make(rows: int, **meta_info) -> DataProto:
    """Dense, multi-dimensional, jagged, object and numeric columns; every row carries its number in each of them."""
    number = torch.arange(rows)
    segments = Segments.from_lengths(number % 3)
    return DataProto.from_dict(
        tensors={
            "ids": number[:, None] * 10 + torch.arange(4),
            "score": number.float(),
            "flag": number % 2 == 0,
            "ragged": jagged(number[segments.rows], segments),
        },
        non_tensors={
            "uid": np.array([f"u{row}" for row in range(rows)], dtype=object),
            "turns": np.arange(rows, dtype=np.int32),
            "messages": [[{"role": "user", "content": str(row)}] for row in range(rows)],
        },
        meta_info={"temperature": 0.7, **meta_info},
    )


def numbers(data: DataProto) -> list[int]:
    """The row numbers a batch holds, after checking that all its columns agree on them."""
    found = data.batch["score"].int().tolist()
    assert data.batch["ids"][:, 0].tolist() == [10 * row for row in found]
    assert data.batch["flag"].tolist() == [row % 2 == 0 for row in found]
    assert [row.tolist() for row in data.batch["ragged"].unbind()] == [[row] * (row % 3) for row in found]
    assert data.non_tensor_batch["uid"].tolist() == [f"u{row}" for row in found]
    assert data.non_tensor_batch["turns"].tolist() == found
    assert [messages[0]["content"] for messages in data.non_tensor_batch["messages"]] == [str(row) for row in found]
    return found


# --- construction -----------------------------------------------------------------------------------------------------


def test_from_single_dict_sorts_by_type():
    data = DataProto.from_single_dict({"ids": torch.zeros(2, 3), "uid": np.array(["a", "b"], dtype=object)})
    assert list(data.batch.keys()) == ["ids"]
    assert list(data.non_tensor_batch) == ["uid"]
    with pytest.raises(ColumnTypeError, match="'uid' is a list"):
        DataProto.from_single_dict({"uid": ["a", "b"]})


def test_lists_become_one_object_a_row_even_when_equally_long():
    data = DataProto.from_dict(non_tensors={"messages": [[1, 2], [3, 4]]})
    assert data.non_tensor_batch["messages"].shape == (2,)
    assert data.non_tensor_batch["messages"][1] == [3, 4]


def test_length_comes_from_any_namespace():
    assert len(DataProto()) == 0
    assert len(DataProto.from_dict(non_tensors={"uid": ["a", "b"]})) == 2
    assert len(DataProto(batch=TensorDict({}, batch_size=[3]))) == 3


def test_inconsistent_batches_are_refused():
    with pytest.raises(DataProtoError, match=r"'b': \(3,\)"):
        DataProto.from_dict({"a": torch.zeros(2), "b": torch.zeros(3)})
    with pytest.raises(DataProtoError, match=r"'uid' has shape \(3,\) in a batch of 2 rows"):
        DataProto.from_dict({"a": torch.zeros(2)}, {"uid": ["a", "b", "c"]})
    with pytest.raises(DataProtoError, match=r"'b' has shape \(1,\) in a batch of 2 rows"):
        DataProto.from_dict(non_tensors={"a": ["x", "y"], "b": ["x"]})
    with pytest.raises(DataProtoError, match=r"shape \(\)"):
        DataProto(non_tensor_batch={"a": np.array(1)})
    with pytest.raises(DataProtoError, match="must be a numpy array, got list"):
        DataProto(non_tensor_batch={"a": ["x"]})
    with pytest.raises(DataProtoError, match="one batch dimension"):
        DataProto(batch=TensorDict({"a": torch.zeros(2, 3)}, batch_size=[2, 3]))


def test_errors_are_the_assertions_that_old_code_catches():
    with pytest.raises(AssertionError):
        DataProto(non_tensor_batch={"a": ["x"]})
    with pytest.raises(KeyError):
        make(2).select(batch_keys=["nothing"])
    with pytest.raises(BatchSizeError):
        make(2).chunk(3)
    assert str(MissingColumnError("a column")) == "a column"


def test_tensordict_round_trip():
    data = make(3)
    back = DataProto.from_tensordict(data.to_tensordict())
    assert numbers(back) == [0, 1, 2]
    assert back.meta_info == {"temperature": 0.7}
    assert len(DataProto.from_tensordict(DataProto(meta_info={"a": 1}).to_tensordict())) == 0
    with pytest.raises(DataProtoError, match="3 rows without any column"):
        data.select([], []).to_tensordict()
    with pytest.raises(DataProtoError, match=r"\['a'\] are in batch and in non_tensor_batch"):
        DataProto.from_dict({"a": torch.zeros(1)}, {"a": ["x"]}).to_tensordict()


# --- rows -------------------------------------------------------------------------------------------------------------


def test_an_integer_gives_an_item_and_the_rest_a_batch():
    data = make(5)
    item = data[-1]
    assert isinstance(item, DataProtoItem)
    assert item.batch["ids"].tolist() == [40, 41, 42, 43]
    assert item.non_tensor_batch["uid"] == "u4"
    assert item.meta_info is data.meta_info
    assert data[np.int64(2)].batch["ragged"].tolist() == [2, 2]
    for index in ([3, 0, 3], np.array([3, 0, 3]), torch.tensor([3, 0, 3]), torch.tensor([3, 0, 3], dtype=torch.int32)):
        assert numbers(data[index]) == [3, 0, 3]
    mask = [True, False, False, True, False]
    for index in (mask, np.array(mask), torch.tensor(mask)):
        assert numbers(data[index]) == [0, 3]
    assert numbers(data[[]]) == []
    assert data["score"] is data.batch["score"]
    assert data["uid"] is data.non_tensor_batch["uid"]
    assert [item.non_tensor_batch["turns"] for item in data] == [0, 1, 2, 3, 4]


@given(
    start=st.none() | st.integers(-7, 7), stop=st.none() | st.integers(-7, 7), step=st.sampled_from([None, 1, 2, -1])
)
@settings(max_examples=40, deadline=None)
def test_slices_are_those_of_a_list(start, stop, step):
    assert numbers(make(5)[start:stop:step]) == list(range(5))[start:stop:step]


def test_bad_indices_are_named():
    data = make(2)
    with pytest.raises(IndexError, match="row 2 is out of range for a batch of 2 rows"):
        data[2]
    with pytest.raises(IndexError, match="index -3 is out of range for 2 rows"):
        data[[0, -3]]
    with pytest.raises(DataProtoError, match="got 3 for 2 rows"):
        data[[True, False, True]]
    with pytest.raises(ColumnTypeError, match="float32"):
        data[torch.tensor([0.0])]
    with pytest.raises(ColumnTypeError, match="got tuple"):
        data[(0, 1)]
    with pytest.raises(MissingColumnError, match="no column 'advantages'"):
        data["advantages"]


def test_repeat_gives_a_new_batch_in_either_order():
    data = make(2)
    assert numbers(data.repeat(3)) == [0, 0, 0, 1, 1, 1]
    assert numbers(data.repeat(3, interleave=False)) == [0, 1, 0, 1, 0, 1]
    assert numbers(data) == [0, 1]
    data.repeat(2).batch["ids"].zero_()
    assert numbers(data) == [0, 1]


def test_sample_level_repeat():
    data = make(3)
    for times in ([2, 0, 1], (2, 0, 1), np.array([2, 0, 1]), torch.tensor([2, 0, 1])):
        assert numbers(data.sample_level_repeat(times)) == [0, 0, 2]
    with pytest.raises(DataProtoError, match=r"got \(2,\) for 3 rows"):
        data.sample_level_repeat([1, 2])
    with pytest.raises(DataProtoError, match="got int"):
        data.sample_level_repeat(2)


@given(order=st.permutations(range(5)))
@settings(max_examples=25, deadline=None)
def test_reorder_moves_every_column_and_is_undone_by_the_inverse(order):
    data = make(5)
    assert data.reorder(torch.tensor(order)) is None
    assert numbers(data) == list(order)
    data.reorder(torch.tensor(order).argsort())
    assert numbers(data) == [0, 1, 2, 3, 4]


@given(rows=st.integers(1, 12), chunks=st.integers(1, 15), padded=st.booleans())
@settings(max_examples=50, deadline=None)
def test_concat_is_the_inverse_of_chunk(rows, chunks, padded):
    data = make(rows, **({DataProtoConfig.auto_padding_key: True} if padded else {}))
    if rows % chunks and not padded:
        with pytest.raises(UnequalSplitError, match=f"{rows} rows into {chunks}"):
            data.chunk(chunks)
        return
    parts = data.chunk(chunks)
    assert len(parts) == chunks
    assert min(map(len, parts)) >= min(1, rows // chunks)
    joined = DataProto.concat(parts)
    assert numbers(joined) == list(range(rows))
    assert joined.meta_info == data.meta_info
    assert is_jagged(joined.batch["ragged"])


def test_split_by_size():
    assert [numbers(part) for part in make(5).split(2)] == [[0, 1], [2, 3], [4]]
    with pytest.raises(UnequalSplitError, match="parts of 0"):
        make(5).split(0)


def test_512_rows_into_6():
    """Case 19: it works with auto-padding, of this batch or of the process; otherwise an error with both numbers."""
    tensors = {"a": torch.arange(512)}
    sizes = [86, 86, 86, 86, 86, 82]
    assert [len(part) for part in DataProto.from_dict(tensors, auto_padding=True).chunk(6)] == sizes
    data = DataProto.from_dict(tensors, {"uid": list(range(512))})
    with pytest.raises(UnequalSplitError, match="512 rows into 6 equal parts: the remainder is 2"):
        data.chunk(6)
    DataProtoConfig.auto_padding = True
    try:
        assert [len(part) for part in data.chunk(6)] == sizes
    finally:
        DataProtoConfig.auto_padding = False


def test_auto_padding_by_environment(monkeypatch):
    monkeypatch.setenv("VERL_AUTO_PADDING", "1")
    assert [len(part) for part in make(5).chunk(2)] == [3, 2]
    with pytest.raises(DataProtoError, match="True or False"):
        DataProtoConfig.auto_padding = 1


def test_no_part_is_empty_when_there_are_rows_enough():
    data = DataProto.from_dict({"a": torch.arange(12)}, auto_padding=True)
    assert [len(part) for part in data.chunk(10)] == [2, 2, 1, 1, 1, 1, 1, 1, 1, 1]


def test_3_rows_padded_to_a_divisor_of_8():
    """Case 19."""
    data = make(3, metrics={"loss": 1.0})
    padded, pad_size = pad_dataproto_to_divisor(data, 8)
    assert pad_size == 5
    assert numbers(padded) == [0, 1, 2, 0, 1, 2, 0, 1]
    assert padded.meta_info is data.meta_info
    assert numbers(unpad_dataproto(padded, pad_size)) == [0, 1, 2]


@given(rows=st.integers(1, 9), divisor=st.integers(1, 10))
@settings(max_examples=30, deadline=None)
def test_unpad_is_the_inverse_of_pad(rows, divisor):
    padded, pad_size = pad_dataproto_to_divisor(make(rows), divisor)
    assert len(padded) % divisor == 0
    assert pad_size < divisor
    assert numbers(unpad_dataproto(padded, pad_size)) == list(range(rows))


def test_padding_bounds(caplog):
    data = make(4)
    assert pad_dataproto_to_divisor(data, 4) == (data, 0)
    assert pad_dataproto_to_divisor(DataProto(), 4)[1] == 0
    assert "no row to repeat" in caplog.text
    with pytest.raises(DataProtoError, match="drop 5 padding rows from a batch of 4"):
        unpad_dataproto(data, 5)
    with pytest.raises(UnequalSplitError, match="multiple of 0"):
        pad_dataproto_to_divisor(data, 0)


def test_padding_in_place_repeats_the_first_or_the_last_row():
    data = make(2)
    data.padding(2, "first")
    data.padding(1)
    data.padding(0)
    assert numbers(data) == [0, 1, 0, 0, 0]
    data = make(2)
    data.padding(2)
    assert numbers(data) == [0, 1, 1, 1]
    with pytest.raises(DataProtoError, match="empty batch with 3 rows"):
        DataProto().padding(3)


def test_make_iterator_yields_every_row_once_an_epoch():
    data = make(6)
    in_order = [numbers(part) for part in data.make_iterator(2, epochs=2)]
    assert in_order == [[0, 1], [2, 3], [4, 5]] * 2
    shuffled = list(data.make_iterator(3, epochs=2, seed=7, dataloader_kwargs={"shuffle": True}))
    again = list(data.make_iterator(3, epochs=2, seed=7, dataloader_kwargs={"shuffle": True}))
    assert [numbers(part) for part in shuffled] == [numbers(part) for part in again]
    assert sorted(numbers(shuffled[0]) + numbers(shuffled[1])) == [0, 1, 2, 3, 4, 5]
    assert shuffled[0].meta_info is data.meta_info
    with pytest.raises(UnequalSplitError, match="6 rows do not divide into mini-batches of 4"):
        data.make_iterator(4, epochs=1)


# --- columns ----------------------------------------------------------------------------------------------------------


def test_select_takes_the_named_columns_and_copies_no_tensor():
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


def test_pop_moves_columns_or_nothing():
    data = make(2)
    with pytest.raises(MissingColumnError, match=r"meta_info has no \['nothing'\]"):
        data.pop(["ids"], ["uid"], ["nothing"])
    popped = data.pop(["ids", "ragged"], ["uid"], ["temperature"])
    assert set(popped.batch.keys()) == {"ids", "ragged"}
    assert popped.meta_info == {"temperature": 0.7}
    assert set(data.batch.keys()) == {"score", "flag"}
    assert set(data.non_tensor_batch) == {"turns", "messages"}
    assert len(data.pop(["score", "flag"])) == len(data) == 2


def test_rename_is_in_place_and_simultaneous():
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


def test_assignment_adds_a_column_of_the_right_size():
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


def test_union_adds_columns_in_place():
    data, added = make(3), DataProto.from_dict({"advantages": torch.ones(3)}, {"source": ["a", "b", "c"]}, {"step": 1})
    assert data.union(added) is data
    assert data.batch["advantages"].tolist() == [1, 1, 1]
    assert data.non_tensor_batch["source"].tolist() == ["a", "b", "c"]
    assert data.meta_info == {"temperature": 0.7, "step": 1}
    assert list(added.batch.keys()) == ["advantages"]


@given(rows=st.integers(0, 5))
@settings(max_examples=10, deadline=None)
def test_union_with_itself_changes_nothing(rows):
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
        ("ragged", lambda data: data.batch.set("ragged", make(4)[[0, 1, 1, 3]].batch["ragged"]), 2),
        ("uid", lambda data: data.non_tensor_batch["uid"].__setitem__(3, "other"), 3),
        ("messages", lambda data: data.non_tensor_batch["messages"][1].append({}), 1),
        ("turns", lambda data: data.non_tensor_batch.update(turns=np.arange(4, dtype=np.int64)), 0),
    ],
)
def test_a_union_conflict_names_key_and_row_and_changes_nothing(key, change, row):
    data, other = make(4), make(4)
    change(other)
    other.batch["new"] = torch.zeros(4)
    with pytest.raises(UnionConflictError, match=f"column '{key}' .* first differs in row {row}: "):
        data.union(other)
    assert "new" not in data.batch.keys()  # noqa: SIM118
    assert numbers(data) == [0, 1, 2, 3]


def test_union_of_meta_info():
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


# --- concat -----------------------------------------------------------------------------------------------------------


def test_concat_merges_timings_and_metrics_and_drops_nothing():
    """Case 18."""
    parts = [
        make(2, timing={"gen": 1.0}, metrics={"kl": 0.1, "only": 5}, **{"timing_s/gen": 1.0, "rank0": "x"}),
        make(2, timing={"gen": 2.0, "sync": 0.5}, metrics=[{"kl": 0.2}, {"kl": 0.3}], **{"timing_s/gen": 3.0}),
    ]
    merged = DataProto.concat(parts).meta_info
    assert merged == {
        "temperature": 0.7,
        "timing": {"gen": [1.0, 2.0], "sync": [0.5]},
        "metrics": {"kl": [0.1, 0.2, 0.3], "only": [5]},
        "timing_s/gen": [1.0, 3.0],
        "rank0": "x",
    }


def test_concat_refuses_what_does_not_fit():
    data = make(2)
    with pytest.raises(DataProtoError, match="zero batches"):
        DataProto.concat([])
    with pytest.raises(UnionConflictError, match=r"meta_info 'temperature' is 0.7 in part 0 and 1.0 in part 2"):
        DataProto.concat([data, data, make(2, temperature=1.0)])
    with pytest.raises(MissingColumnError, match=r"part 1 has the tensor columns .*\['score'\]"):
        DataProto.concat([data, make(2).select(["ids", "flag", "ragged"])])
    with pytest.raises(MissingColumnError, match=r"\['uid'\]"):
        DataProto.concat([data, make(2).select(non_tensor_batch_keys=["turns", "messages"])])
    with pytest.raises(MissingColumnError, match="part 1 has no tensors"):
        DataProto.concat([data, DataProto.from_dict(non_tensors={"uid": ["a"]})])
    with pytest.raises(DataProtoError, match=r"'a' is \[B, 3\] in part 0 and \[B, 4\] in part 1"):
        DataProto.concat([DataProto.from_dict({"a": torch.zeros(1, width)}) for width in (3, 4)])
    with pytest.raises(DataProtoError, match=r"'a' has rows of shapes \[\(3,\), \(4,\)\]"):
        DataProto.concat([DataProto.from_dict(non_tensors={"a": np.zeros((1, width))}) for width in (3, 4)])


def test_a_subclass_stays_itself():
    class Batch(DataProto):
        pass

    batch = Batch.from_dict({"a": torch.arange(4)})
    for result in (
        batch[:2],
        batch.repeat(2),
        batch.chunk(2)[0],
        Batch.concat([batch]),
        batch.select(),
        batch.pop(["a"]),
    ):
        assert type(result) is Batch


# --- transport --------------------------------------------------------------------------------------------------------


def test_pickle_keeps_everything_and_is_writable():
    data = make(4)
    data.batch["half"] = torch.rand(4, 2).bfloat16()
    data.batch["scalar_like"] = torch.rand(4, 0)
    back = pickle.loads(pickle.dumps(data[1:3]))
    assert numbers(back) == [1, 2]
    assert torch.equal(back.batch["half"], data.batch["half"][1:3])
    assert back.batch["half"].dtype == torch.bfloat16
    assert back.batch["ragged"].to_padded_tensor(0).shape == (2, 2)
    back.batch["ids"] += 1
    assert pickle.loads(pickle.dumps(DataProto(meta_info={"a": 1}))) == DataProto(meta_info={"a": 1})


def test_jagged_position_ids_keep_their_ragged_dimension_through_pickle():
    segments = Segments.from_lengths([2, 2])
    data = DataProto.from_dict({"position_ids": jagged(torch.arange(12).view(3, 4), segments, ragged_dim=2)})
    back = pickle.loads(pickle.dumps(data))
    assert [row.tolist() for row in back.batch["position_ids"].unbind()] == [
        [[0, 1], [4, 5], [8, 9]],
        [[2, 3], [6, 7], [10, 11]],
    ]


def test_a_pickled_slice_does_not_carry_the_whole_batch():
    data = DataProto.from_dict({"a": torch.zeros(1000, 100)})
    assert len(pickle.dumps(data[:1])) < 10_000


def test_state_from_read_only_memory_is_writable_again():
    buffers: list[pickle.PickleBuffer] = []
    blob = pickle.dumps(make(2), protocol=5, buffer_callback=buffers.append)
    read_only = [memoryview(bytes(buffer)) for buffer in buffers]
    back = pickle.loads(blob, buffers=read_only)
    before = [bytes(buffer) for buffer in read_only]
    back.batch["ids"].add_(10)
    back.batch["ragged"].values().add_(10)
    assert back.batch["ids"][:, 0].tolist() == [10, 20]
    assert [bytes(buffer) for buffer in read_only] == before


def test_to_moves_tensors_in_place():
    data = make(2)
    assert data.to("cpu") is data
    assert data.batch.device == torch.device("cpu")
    assert numbers(data) == [0, 1]
    assert DataProto().to("cpu").batch is None


def test_get_data_info_describes_every_column():
    info = make(3, sizes=[1, 2], shape=(1, "a"), config={"a": 1.0}).get_data_info()
    assert info.splitlines() == [
        "batch",
        "  ids: (3, 4) (torch.int64) cpu",
        "  score: (3,) (torch.float32) cpu",
        "  flag: (3,) (torch.bool) cpu",
        "  ragged: (3, j) j <= 2 (torch.int64) cpu",
        "non_tensor_batch",
        "  uid: ndarray(3,) (object)",
        "  turns: ndarray(3,) (int32)",
        "  messages: ndarray(3,) (object)",
        "meta_info",
        "  temperature: float",
        "  sizes: list[int]",
        "  shape: tuple(int, str)",
        "  config: dict[str: float]",
    ]


def test_print_size(capsys):
    DataProto.from_dict({"a": torch.zeros(2**18)}).print_size("rollout")
    assert capsys.readouterr().out == f"rollout, Size of tensordict: {2**-10} GB, size of non_tensor_batch: 0.0 GB\n"


def test_collate_fn_stacks_items():
    data = make(3)
    data.pop(["ragged"])
    back = collate_fn([data[2], data[0]])
    assert back.batch["ids"].tolist() == [[20, 21, 22, 23], [0, 1, 2, 3]]
    assert back.non_tensor_batch["uid"].tolist() == ["u2", "u0"]
    assert back.non_tensor_batch["messages"].shape == (2,)
    pairs = DataProto.from_dict(non_tensors={"pair": np.arange(4).reshape(2, 2)})
    assert collate_fn(list(pairs)).non_tensor_batch["pair"].tolist() == [[0, 1], [2, 3]]
    with pytest.raises(DataProtoError, match="zero rows"):
        collate_fn([])


def test_torch_save_and_load_round_trip():
    buffer = io.BytesIO()
    torch.save(make(2), buffer)
    buffer.seek(0)
    assert numbers(torch.load(buffer, weights_only=False)) == [0, 1]


@pytest.mark.ray
def test_a_future_is_fetched_joined_and_chunked_through_ray(cluster):  # noqa: ARG001
    import ray

    future = DataProtoFuture.concat([ray.put(part) for part in make(6).chunk(2)])
    assert numbers(future.get()) == [0, 1, 2, 3, 4, 5]
    thirds = future.chunk(3)
    assert [numbers(third.get()) for third in thirds] == [[0, 1], [2, 3], [4, 5]]
    assert numbers(thirds[1].chunk(2)[1].get()) == [3]
    thirds[0].get().batch["ids"].add_(1)
    assert numbers(future.get()) == [0, 1, 2, 3, 4, 5]
    tables = DataProtoFuture.concat([ray.put(TensorDict({"a": torch.ones(2)}, batch_size=2)) for _ in range(2)])
    assert tables.get()["a"].shape == (4,)
