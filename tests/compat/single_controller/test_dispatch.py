"""How a call is cut among ranks and joined again, on ranks that are plain functions."""

import pickle

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from compat import jagged
from compat.errors import UnequalSplitError
from compat.protocol import DataProto
from compat.single_controller import dispatch, shards
from compat.single_controller.decorator import Dispatch, get_predefined_dispatch_fn
from compat.single_controller.errors import DispatchError, DispatchModeError
from compat.single_controller.worker_group import WorkerGroup, func_generator
from compat.tensordicts import get_tensordict
from runtime.errors import VerliftError
from shared_algos.segments import Segments


class Ranks(WorkerGroup):
    """Ranks that are plain functions, each called with its own share."""

    def __init__(self, world_size, work, mapping=None, mask=None):
        super().__init__(None)
        self._workers = [work] * world_size
        self.calls = []
        self.asked = []
        self._query_dispatch_info = lambda mesh: self.asked.append(mesh) or mapping
        self._query_collect_info = lambda mesh: self.asked.append(mesh) or mask

    def execute_all(self, _, *args):
        self.calls = [[arg[rank] for arg in args] for rank in range(self.world_size)]
        return [work(*call) for work, call in zip(self._workers, self.calls, strict=True)]

    def fetch(self, references):
        return references

    def call(self, mode, *args):
        functions = mode if isinstance(mode, dict) else get_predefined_dispatch_fn(mode)
        return func_generator(self, "work", **functions, execute_fn=self.execute_all, blocking=True)(*args)


def batch(rows: int, **options) -> DataProto:
    return DataProto.from_dict({"x": torch.arange(float(rows))}, {"uid": [f"u{row}" for row in range(rows)]}, **options)


def double(part: DataProto) -> DataProto:
    return DataProto.from_dict({"twice": part.batch["x"] * 2})


MESH = dispatch.make_nd_compute_dataproto_dispatch_fn("actor")


@pytest.mark.parametrize("mode", [Dispatch.DP_COMPUTE_PROTO, MESH], ids=["DP_COMPUTE_PROTO", "mesh"])
def test_three_rows_over_eight_ranks_need_auto_padding(mode):
    ranks = Ranks(8, double, list(range(8)), [True] * 8)
    with pytest.raises(UnequalSplitError, match="cannot split 3 rows into 8 equal parts"):
        ranks.call(mode, batch(3))
    given = batch(3, auto_padding=True)
    assert ranks.call(mode, given).batch["twice"].tolist() == [0, 2, 4]
    assert [len(call[0]) for call in ranks.calls] == [1] * 8, "every rank computes"
    assert len(given) == 3, "the caller's batch is its own"


def test_rows_that_a_rank_makes_of_padding_are_dropped_with_it():
    ranks = Ranks(2, lambda part: double(part).repeat(3))
    answer = ranks.call(Dispatch.DP_COMPUTE_PROTO, batch(3, auto_padding=True))
    assert answer.batch["twice"].tolist() == [0, 0, 0, 2, 2, 2, 4, 4, 4]
    odd = Ranks(2, lambda part: batch(len(part) + 1))
    with pytest.raises(DispatchError, match="work answered 6 rows to 4, 1 of which are padding"):
        odd.call(Dispatch.DP_COMPUTE_PROTO, batch(3, auto_padding=True))


def test_every_rank_reports_its_metric_of_a_padded_batch():
    ranks = Ranks(2, lambda part: {"rows": len(part)})
    assert ranks.call(Dispatch.DP_COMPUTE_METRIC, batch(3, auto_padding=True)) == [{"rows": 2}, {"rows": 2}]


def test_padded_batches_of_one_call_have_one_length():
    with pytest.raises(DispatchError, match=r"\[2, 3\] rows"):
        Ranks(2, double).call(Dispatch.DP_COMPUTE_PROTO, batch(3, auto_padding=True), batch(2, auto_padding=True))


def test_tensordict_and_list_are_answered_in_kind():
    lengths = Segments.from_lengths(torch.tensor([1, 3, 2, 1]))
    rows = get_tensordict(
        {"ids": jagged.jagged(torch.arange(7), lengths), "uid": np.array(list("abcd"), dtype=object)}, {"step": 3}
    )
    answer = Ranks(2, lambda part: part).call(Dispatch.DP_COMPUTE_PROTO, rows)
    assert isinstance(answer, TensorDict)
    assert answer["ids"].offsets().tolist() == [0, 1, 4, 6, 7]
    assert list(answer["uid"]) == list("abcd")
    assert answer["step"] == 3
    assert Ranks(2, lambda part: part[::-1]).call(Dispatch.DP_COMPUTE_PROTO, [1, 2, 3, 4]) == [2, 1, 4, 3]
    for given in (rows[:3], [1, 2, 3]):
        with pytest.raises(UnequalSplitError, match="3 rows into 2"):
            Ranks(2, lambda part: part).call(Dispatch.DP_COMPUTE_PROTO, given)


def test_a_part_is_sent_without_the_rest_of_the_batch():
    rows = TensorDict({"x": torch.zeros(64, 1000)}, batch_size=64)
    for whole in (rows, DataProto(rows)):
        assert all(len(pickle.dumps(part)) < 1.1 * 64 * 1000 for part in shards.split(whole, 4))


def test_answers_without_rows_are_those_of_one_rank():
    metrics = TensorDict({"loss": torch.tensor(0.5)}, batch_size=[])
    assert Ranks(2, lambda _: metrics).call(Dispatch.DP_COMPUTE_PROTO, batch(2)) is metrics


def test_process_wide_padding_fills_every_container(monkeypatch):
    monkeypatch.setenv("VERL_AUTO_PADDING", "1")
    ranks = Ranks(2, lambda part: part)
    rows = TensorDict({"x": torch.arange(3)}, batch_size=3)
    assert ranks.call(Dispatch.DP_COMPUTE_PROTO, rows)["x"].tolist() == [0, 1, 2]
    assert ranks.call(Dispatch.DP_COMPUTE_PROTO, [7, 8, 9]) == [7, 8, 9]
    assert [len(call[0]) for call in ranks.calls] == [2, 2]


def test_a_mesh_gives_ranks_of_one_group_one_part_and_is_asked_once(monkeypatch):
    stored = []
    monkeypatch.setattr(dispatch.ray, "put", lambda part: stored.append(part) or part)
    ranks = Ranks(4, double, mapping=[0, 0, 1, 1], mask=[True, False, False, True])
    for _ in range(2):
        assert ranks.call(MESH, batch(4)).batch["twice"].tolist() == [0, 2, 4, 6]
    assert [call[0].batch["x"].tolist() for call in ranks.calls] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert ranks.asked == ["actor", "actor"], "once for the dispatch, once for the collection"
    assert len(stored) == 4, "a part for two ranks is stored once"


def test_answers_that_cannot_be_joined_are_named():
    for work, named in ((lambda _: {"loss": 1.0}, "dict"), (lambda _: None, "NoneType")):
        with pytest.raises(DispatchError, match=named):
            Ranks(2, work).call(Dispatch.DP_COMPUTE_PROTO, batch(2))
    mixed = iter([batch(1), [1]])
    with pytest.raises(DispatchError, match="DataProto, list"):
        Ranks(2, lambda _: next(mixed)).call(Dispatch.DP_COMPUTE_PROTO, batch(2))


def test_arguments_that_cannot_be_cut_are_named():
    with pytest.raises(DispatchError, match="a str cannot be cut"):
        Ranks(2, double).call(Dispatch.DP_COMPUTE_PROTO, "path")
    with pytest.raises(DispatchError, match=r"argument 0 has 3 entries; .* lists of 2"):
        Ranks(2, double).call(Dispatch.DP_COMPUTE, [1, 2, 3])
    with pytest.raises(DispatchError, match="takes a function"):
        Ranks(2, double).call(Dispatch.DP_COMPUTE_PROTO_WITH_FUNC, batch(2))


@pytest.mark.parametrize("name", [name for name in Dispatch.names() if "MEGATRON" in name])
def test_megatron_modes_can_be_named_but_not_bound(name):
    with pytest.raises(DispatchModeError, match=r"Megatron.*use Dispatch\.DP_COMPUTE_PROTO") as raised:
        get_predefined_dispatch_fn(Dispatch[name])
    assert isinstance(raised.value, VerliftError)


def test_lists_of_rows_know_their_padding():
    padding = shards.Padding(2, 4)
    assert shards.unpad(shards.pad([1, 2], padding), padding, "work") == [1, 2]
    assert shards.unpad([], padding, "work") == []
