import numpy as np
import pytest
import torch
from tensordict import NonTensorStack

from compat.columns import concat_rows, index_rows, slice_rows
from compat.errors import ColumnTypeError, DataProtoError, LayoutError, MissingColumnError
from compat.jagged import jagged, ragged_dim
from compat.padding import list_of_dict_to_tensordict
from compat.tensordicts import get_tensordict, split_tensordict
from shared_algos.segments import Segments


def test_equal_shapes_are_stacked_and_others_become_jagged():
    """Seed 4.5 and case 9."""
    rows = [
        {"prompts": torch.arange(2), "responses": torch.arange(3), "mask": torch.ones(3), "raw": [{"a": 1}]},
        {"prompts": torch.arange(2), "responses": torch.arange(1), "mask": torch.ones(1), "raw": "text"},
    ]
    batch = list_of_dict_to_tensordict(rows)
    assert batch["prompts"].shape == (2, 2)
    assert batch["responses"].offsets().tolist() == [0, 3, 4]
    assert batch["responses"].to_padded_tensor(9).tolist() == [[0, 1, 2], [0, 9, 9]]
    assert (batch["responses"] * batch["mask"]).values().tolist() == [0, 1, 2, 0]
    assert batch.get("raw").tolist() == [[{"a": 1}], "text"]


def test_the_ragged_dimension_is_the_one_that_differs():
    features = list_of_dict_to_tensordict([{"x": torch.zeros(2, 4)}, {"x": torch.zeros(3, 4)}])["x"]
    positions = list_of_dict_to_tensordict([{"x": torch.zeros(4, 2)}, {"x": torch.zeros(4, 3)}])["x"]
    assert (ragged_dim(features), ragged_dim(positions)) == (1, 2)
    assert positions.to_padded_tensor(0).shape == (2, 4, 3)


def test_rows_that_do_not_fit_are_named():
    with pytest.raises(MissingColumnError, match=r"row 1 has keys \['a', 'b'\] where row 0 has \['a'\]: see \['b'\]"):
        list_of_dict_to_tensordict([{"a": 1}, {"a": 1, "b": 2}])
    with pytest.raises(LayoutError, match=r"'a' has rows of shapes \[\(2, 3\), \(3, 4\)\]"):
        list_of_dict_to_tensordict([{"a": torch.zeros(2, 3)}, {"a": torch.zeros(3, 4)}])
    with pytest.raises(LayoutError, match=r"shapes \[\(2,\), \(2, 3\)\]"):
        list_of_dict_to_tensordict([{"a": torch.zeros(2)}, {"a": torch.zeros(2, 3)}])
    with pytest.raises(DataProtoError, match="zero rows"):
        list_of_dict_to_tensordict([])


def test_get_tensordict_and_back():
    nested = jagged(torch.arange(3), Segments.from_lengths([1, 2]))
    batch = get_tensordict({"ids": nested, "uid": ["a", "b"], "n": np.array([1, 2])}, {"steps": {"global": 3}})
    assert batch.batch_size == (2,)
    assert isinstance(batch.get("uid"), NonTensorStack)
    tensors, objects, shared = split_tensordict(batch)
    assert list(tensors) == ["ids"]
    assert {key: array.tolist() for key, array in objects.items()} == {"uid": ["a", "b"], "n": [1, 2]}
    assert shared == {"steps": {"global": 3}}
    assert get_tensordict({}, {"a": 1}).batch_size == ()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_get_tensordict_refuses_what_is_no_batch():
    with pytest.raises(DataProtoError, match=r"\{'a': 2, 'b': 3\}"):
        get_tensordict({"a": torch.zeros(2), "b": [1, 2, 3]})
    with pytest.raises(DataProtoError, match=r"keys \['a'\]"):
        get_tensordict({"a": torch.zeros(2)}, {"a": 1})
    with pytest.raises(ColumnTypeError, match="'a' is a str"):
        get_tensordict({"a": "text"})
    with pytest.raises(ColumnTypeError, match="'a' is a list of tensors"):
        get_tensordict({"a": [torch.zeros(1)]})
    with pytest.raises(LayoutError, match="'a' is nested"):
        get_tensordict({"a": torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)])})


def test_objects_move_with_their_rows():
    batch = get_tensordict({"x": torch.arange(3), "uid": ["a", "b", "c"]}, {"step": 1})
    picked = index_rows(batch, torch.tensor([2, 0]))
    assert picked.get("uid").tolist() == ["c", "a"]
    assert slice_rows(batch, 1, 2).get("uid").tolist() == ["b"]
    joined = concat_rows([batch, picked])
    assert joined.get("uid").tolist() == ["a", "b", "c", "c", "a"]
    assert split_tensordict(joined)[2] == {"step": 1}


def test_columns_keep_sharing_offsets_after_every_row_operation():
    segments = Segments.from_lengths([2, 1, 3])
    batch = get_tensordict({"a": jagged(torch.ones(6), segments), "b": jagged(torch.ones(6), segments)})
    for result in (
        index_rows(batch, torch.tensor([2, 0])),
        slice_rows(batch, 1, 3),
        concat_rows([batch, batch]),
    ):
        assert (result["a"] + result["b"]).values().eq(2).all()


def test_a_column_is_jagged_in_all_parts_or_in_none():
    dense = get_tensordict({"a": torch.ones(2, 2)})
    ragged = get_tensordict({"a": jagged(torch.ones(4), Segments.from_lengths([2, 2]))})
    with pytest.raises(LayoutError, match="'a' is jagged in some parts and dense in others"):
        concat_rows([dense, ragged])
