import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compat.errors import (
    ColumnTypeError,
    DataProtoError,
    MissingColumnError,
    UnequalSplitError,
)
from compat.jagged import is_jagged
from compat.protocol import (
    DataProto,
    DataProtoConfig,
    DataProtoItem,
    pad_dataproto_to_divisor,
    unpad_dataproto,
)


def test_an_integer_gives_an_item_and_the_rest_a_batch(make, numbers):
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
def test_slices_are_those_of_a_list(make, numbers, start, stop, step):
    assert numbers(make(5)[start:stop:step]) == list(range(5))[start:stop:step]


def test_bad_indices_are_named(make):
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


def test_an_array_may_run_backwards(make, numbers):
    """As ``np.argsort(scores)[::-1]`` does, which torch refuses."""
    backwards = np.arange(4)[::-1]
    assert numbers(make(4)[backwards]) == [3, 2, 1, 0]
    assert numbers(make(4)[np.array([True, True, False, True])[::-1]]) == [0, 2, 3]
    assert numbers(make(4).sample_level_repeat(backwards)) == [0, 0, 0, 1, 1, 2]
    data = make(4)
    data.reorder(backwards)
    assert numbers(data) == [3, 2, 1, 0]


def test_repeat_gives_a_new_batch_in_either_order(make, numbers):
    data = make(2)
    assert numbers(data.repeat(3)) == [0, 0, 0, 1, 1, 1]
    assert numbers(data.repeat(3, interleave=False)) == [0, 1, 0, 1, 0, 1]
    assert numbers(data) == [0, 1]
    data.repeat(2).batch["ids"].zero_()
    assert numbers(data) == [0, 1]


def test_sample_level_repeat(make, numbers):
    data = make(3)
    for times in ([2, 0, 1], (2, 0, 1), np.array([2, 0, 1]), torch.tensor([2, 0, 1])):
        assert numbers(data.sample_level_repeat(times)) == [0, 0, 2]
    with pytest.raises(DataProtoError, match=r"got \(2,\) for 3 rows"):
        data.sample_level_repeat([1, 2])
    with pytest.raises(DataProtoError, match="got int"):
        data.sample_level_repeat(2)


@given(order=st.permutations(range(5)))
@settings(max_examples=25, deadline=None)
def test_reorder_moves_every_column_and_is_undone_by_the_inverse(make, numbers, order):
    data = make(5)
    assert data.reorder(torch.tensor(order)) is None
    assert numbers(data) == list(order)
    data.reorder(torch.tensor(order).argsort())
    assert numbers(data) == [0, 1, 2, 3, 4]


@given(rows=st.integers(1, 12), chunks=st.integers(1, 15), padded=st.booleans())
@settings(max_examples=50, deadline=None)
def test_concat_is_the_inverse_of_chunk(make, numbers, rows, chunks, padded):
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


def test_split_by_size(make, numbers):
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


def test_auto_padding_by_environment(make, monkeypatch):
    monkeypatch.setenv("VERL_AUTO_PADDING", "1")
    assert [len(part) for part in make(5).chunk(2)] == [3, 2]
    with pytest.raises(DataProtoError, match="True or False"):
        DataProtoConfig.auto_padding = 1


def test_no_part_is_empty_when_there_are_rows_enough():
    data = DataProto.from_dict({"a": torch.arange(12)}, auto_padding=True)
    assert [len(part) for part in data.chunk(10)] == [2, 2, 1, 1, 1, 1, 1, 1, 1, 1]


def test_3_rows_padded_to_a_divisor_of_8(make, numbers):
    """Case 19."""
    data = make(3, metrics={"loss": 1.0})
    padded, pad_size = pad_dataproto_to_divisor(data, 8)
    assert pad_size == 5
    assert numbers(padded) == [0, 1, 2, 0, 1, 2, 0, 1]
    assert padded.meta_info is data.meta_info
    assert numbers(unpad_dataproto(padded, pad_size)) == [0, 1, 2]


@given(rows=st.integers(1, 9), divisor=st.integers(1, 10))
@settings(max_examples=30, deadline=None)
def test_unpad_is_the_inverse_of_pad(make, numbers, rows, divisor):
    padded, pad_size = pad_dataproto_to_divisor(make(rows), divisor)
    assert len(padded) % divisor == 0
    assert pad_size < divisor
    assert numbers(unpad_dataproto(padded, pad_size)) == list(range(rows))


def test_padding_bounds(make, caplog):
    data = make(4)
    assert pad_dataproto_to_divisor(data, 4) == (data, 0)
    assert pad_dataproto_to_divisor(DataProto(), 4)[1] == 0
    assert "no row to repeat" in caplog.text
    with pytest.raises(DataProtoError, match="drop 5 padding rows from a batch of 4"):
        unpad_dataproto(data, 5)
    with pytest.raises(UnequalSplitError, match="multiple of 0"):
        pad_dataproto_to_divisor(data, 0)


def test_padding_in_place_repeats_the_first_or_the_last_row(make, numbers):
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


def test_make_iterator_yields_every_row_once_an_epoch(make, numbers):
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
