import numpy as np
import pytest
import torch
from tensordict import TensorDict

from compat.errors import (
    ColumnTypeError,
    DataProtoError,
    MissingColumnError,
)
from compat.protocol import (
    DataProto,
    dataprotoitem_to_dataproto,
)
from runtime.errors import BatchSizeError


def test_from_single_dict_sorts_by_type():
    data = DataProto.from_single_dict({"ids": torch.zeros(2, 3), "uid": np.array(["a", "b"], dtype=object)})
    assert list(data.batch.keys()) == ["ids"]
    assert list(data.non_tensor_batch) == ["uid"]
    with pytest.raises(ColumnTypeError, match=r"'uid' is a list"):
        DataProto.from_single_dict({"uid": ["a", "b"]})


def test_lists_become_one_object_a_row_even_when_equally_long():
    data = DataProto.from_dict(non_tensors={"messages": [[1, 2], [3, 4]]})
    assert data.non_tensor_batch["messages"].shape == (2,)
    assert data.non_tensor_batch["messages"][1] == [3, 4]


@pytest.mark.parametrize("column", ["ab", {"a": 1, "b": 2}, b"ab", 5, None])
def test_what_is_no_list_is_not_taken_apart_into_rows(column):
    with pytest.raises(ColumnTypeError, match=r"'uid' is a .*list of B objects"):
        DataProto.from_dict({"ids": torch.zeros(2)}, {"uid": column})


def test_rows_chosen_by_index_need_no_conversion(make, numbers):
    """What verl up to 0.3 gave for them did."""
    data = make(4)
    assert numbers(dataprotoitem_to_dataproto(data[[2, 0]])) == [2, 0]
    one = dataprotoitem_to_dataproto(data[3])
    assert numbers(one) == [3]
    assert one.meta_info is data.meta_info


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


def test_errors_are_the_assertions_that_old_code_catches(make):
    with pytest.raises(AssertionError):
        DataProto(non_tensor_batch={"a": ["x"]})
    with pytest.raises(KeyError):
        make(2).select(batch_keys=["nothing"])
    with pytest.raises(BatchSizeError):
        make(2).chunk(3)
    assert str(MissingColumnError("a column")) == "a column"


def test_tensordict_round_trip(make, numbers):
    data = make(3)
    back = DataProto.from_tensordict(data.to_tensordict())
    assert numbers(back) == [0, 1, 2]
    assert back.meta_info == {"temperature": 0.7}
    assert len(DataProto.from_tensordict(DataProto(meta_info={"a": 1}).to_tensordict())) == 0
    with pytest.raises(DataProtoError, match="3 rows without any column"):
        data.select([], []).to_tensordict()
    with pytest.raises(DataProtoError, match=r"\['a'\] are in batch and in non_tensor_batch"):
        DataProto.from_dict({"a": torch.zeros(1)}, {"a": ["x"]}).to_tensordict()
