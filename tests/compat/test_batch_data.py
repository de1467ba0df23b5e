from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tensordict import TensorDict

from compat.batch_data import BatchData, all_gather_data_proto
from compat.errors import ColumnTypeError, DataProtoError, MissingColumnError, UnequalSplitError
from compat.futures import DataProtoFuture
from compat.jagged import jagged
from compat.protocol import DataProto
from shared_algos.segments import Segments


@dataclass
class Keys:
    """The face of TransferQueue's metadata."""

    keys: list[str]

    def chunk(self, chunks: int) -> list["Keys"]:
        return [Keys(self.keys[part::chunks]) for part in range(chunks)]

    @staticmethod
    def concat(parts: list["Keys"]) -> "Keys":
        return Keys([key for part in parts for key in part.keys])


def rows(data) -> list[int]:
    return (data["a"] if isinstance(data, TensorDict) else data.batch["a"]).tolist()


@pytest.mark.parametrize("kind", ["DataProto", "TensorDict"])
def test_a_batch_is_cut_and_joined(kind):
    data = DataProto.from_dict({"a": torch.arange(6)})
    wrapped = BatchData(data if kind == "DataProto" else data.batch)
    assert wrapped.is_chunkable()
    assert not wrapped.is_concatable()
    parts = wrapped.chunk(3)
    assert [rows(part) for part in parts] == [[0, 1], [2, 3], [4, 5]]
    assert BatchData(parts).is_concatable()
    assert rows(BatchData(parts).concat()) == list(range(6))
    with pytest.raises(UnequalSplitError, match="6 rows into 4"):
        wrapped.chunk(4)


def test_anything_with_chunk_and_concat_is_a_batch():
    parts = BatchData(Keys(["a", "b", "c"])).chunk(2)
    assert parts == [Keys(["a", "c"]), Keys(["b"])]
    assert BatchData(parts).concat() == Keys(["a", "c", "b"])
    future = DataProtoFuture(list, [])
    assert BatchData(future).is_chunkable()
    assert not BatchData([future]).is_concatable()
    for other in (torch.ones(2), [1], {"a": 1}, None):
        assert not BatchData(other).is_chunkable()
        assert not BatchData([other]).is_concatable()
    with pytest.raises(ColumnTypeError, match="zero batches"):
        BatchData([]).concat()


def gather(rank: int, address: str) -> None:
    """One rank of two: uneven rows, a jagged column, objects, and then a column that rank 1 lacks."""
    dist.init_process_group("gloo", init_method=address, world_size=2, rank=rank)
    segments = Segments.from_lengths([1, 2][: rank + 1])
    data = DataProto.from_dict(
        {"a": torch.arange(rank + 1) + rank, "ragged": jagged(torch.arange(segments.num_tokens), segments)},
        {"uid": np.array([f"{rank}{row}" for row in range(rank + 1)], dtype=object)},
        {"rank": rank},
    )
    all_gather_data_proto(data, dist.group.WORLD)
    assert data.batch["a"].tolist() == [0, 1, 2]
    assert [row.tolist() for row in data.batch["ragged"].unbind()] == [[0], [0], [1, 2]]
    assert data.non_tensor_batch["uid"].tolist() == ["00", "10", "11"]
    assert data.meta_info == {"rank": rank}
    odd = DataProto.from_dict({"a": torch.ones(1), **({} if rank else {"b": torch.ones(1)})})
    with pytest.raises(MissingColumnError, match="b"):
        all_gather_data_proto(odd, dist.group.WORLD)
    with pytest.raises(DataProtoError, match="got a dict"):
        all_gather_data_proto({}, dist.group.WORLD)
    dist.destroy_process_group()


def test_every_rank_gets_the_rows_of_all(tmp_path):
    mp.spawn(gather, (f"file://{tmp_path / 'meeting'}",), nprocs=2)
