import numpy as np
import pytest
import torch

from compat.errors import (
    DataProtoError,
    MissingColumnError,
    UnionConflictError,
)
from compat.protocol import (
    DataProto,
)


def test_concat_merges_timings_and_metrics_and_drops_nothing(make):
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


def test_concat_refuses_what_does_not_fit(make):
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
