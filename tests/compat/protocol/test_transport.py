import io
import pickle

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from compat.errors import (
    DataProtoError,
)
from compat.jagged import jagged
from compat.protocol import (
    DataProto,
    DataProtoFuture,
    collate_fn,
)
from shared_algos.segments import Segments


def test_pickle_keeps_everything_and_is_writable(make, numbers):
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


def test_state_from_read_only_memory_is_writable_again(make):
    buffers: list[pickle.PickleBuffer] = []
    blob = pickle.dumps(make(2), protocol=5, buffer_callback=buffers.append)
    read_only = [memoryview(bytes(buffer)) for buffer in buffers]
    back = pickle.loads(blob, buffers=read_only)
    before = [bytes(buffer) for buffer in read_only]
    back.batch["ids"].add_(10)
    back.batch["ragged"].values().add_(10)
    assert back.batch["ids"][:, 0].tolist() == [10, 20]
    assert [bytes(buffer) for buffer in read_only] == before


def test_to_moves_tensors_in_place(make, numbers):
    data = make(2)
    assert data.to("cpu") is data
    assert data.batch.device == torch.device("cpu")
    assert numbers(data) == [0, 1]
    assert DataProto().to("cpu").batch is None


def test_get_data_info_describes_every_column(make):
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


def test_collate_fn_stacks_items(make):
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


def test_torch_save_and_load_round_trip(make, numbers):
    buffer = io.BytesIO()
    torch.save(make(2), buffer)
    buffer.seek(0)
    assert numbers(torch.load(buffer, weights_only=False)) == [0, 1]


@pytest.mark.ray
def test_a_future_is_fetched_joined_and_chunked_through_ray(make, numbers, cluster):  # noqa: ARG001
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
