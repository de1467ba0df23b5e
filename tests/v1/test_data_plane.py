"""The data plane against the real TransferQueue: rows come back whole, or not at all."""

import uuid

import pytest
import torch

from runtime import containers
from runtime.agent_loop import AgentLoopOutput, as_trajectories
from runtime.errors import BatchSizeError, DataPlaneError
from runtime.identity import TrajectoryKey
from v1 import data_plane
from v1.data_plane import KVBatchMeta

pytestmark = pytest.mark.ray


@pytest.fixture
def partition(cluster):  # noqa: ARG001
    """A partition of the test's own."""
    return f"test-{uuid.uuid4()}"


def put(partition: str, prompt_lengths: list[int], response_lengths: list[int]) -> KVBatchMeta:
    """Write one row a length; row b's tokens are 1000*b + place."""
    keys = [TrajectoryKey(f"prompt_{row}", 0, 0) for row in range(len(prompt_lengths))]
    outputs = [
        AgentLoopOutput(
            prompt_ids=[1000 * row + place for place in range(prompt)],
            response_ids=[1000 * row + prompt + place for place in range(response)],
            response_mask=[1] * response,
            response_logprobs=[-0.5] * response,
            reward_score=float(row),
        )
        for row, (prompt, response) in enumerate(zip(prompt_lengths, response_lengths, strict=True))
    ]
    samples = [{"data_source": f"source_{row}", "tools_kwargs": {}, "nothing": None} for row in range(len(keys))]
    tags = [
        {"prompt_len": p, "response_len": r, "seq_len": p + r}
        for p, r in zip(prompt_lengths, response_lengths, strict=True)
    ]
    data_plane.put_rows(as_trajectories(keys, outputs, samples, (9, 9)), partition, tags)
    return KVBatchMeta(keys=[str(key) for key in keys], tags=tags, partition_id=partition)


@pytest.mark.parametrize(
    ("prompt_lengths", "response_lengths"),
    [([4, 2], [3, 5]), ([3, 3, 3], [2, 2, 2]), ([4, 4], [3, 5]), ([5], [1]), ([1, 1], [1, 1])],
    ids=["ragged", "all equal", "prompts equal", "one row", "one token"],
)
def test_columns_come_back_with_their_lengths(partition, prompt_lengths, response_lengths):
    """FACTS cases 8 and 9: equal lengths or a single row came back dense, or ragged in the wrong dimension."""
    batch = put(partition, prompt_lengths, response_lengths)
    fields = [
        "prompts",
        "responses",
        "input_ids",
        "position_ids",
        "num_turns",
        "data_source",
        "tools_kwargs",
        "nothing",
    ]
    back = data_plane.read(batch, fields)
    assert back.prompts.lengths.tolist() == prompt_lengths
    assert back.responses.lengths.tolist() == response_lengths
    for row, tokens in enumerate(back.sequences.split(back["input_ids"])):
        assert tokens.tolist() == [1000 * row + place for place in range(prompt_lengths[row] + response_lengths[row])]
    assert torch.equal(back["position_ids"], back.sequences.positions)
    assert back["num_turns"].tolist() == [2] * len(batch)
    assert back.objects["data_source"].tolist() == [f"source_{row}" for row in range(len(batch))]
    assert back.objects["tools_kwargs"].tolist() == [{}] * len(batch)
    assert back.objects["nothing"].tolist() == [None] * len(batch)


def test_what_a_stage_writes_joins_the_row_it_belongs_to(partition):
    batch = put(partition, [2, 1, 3], [2, 4, 1])
    turned = containers.select_rows(batch, torch.tensor([2, 0, 1]))
    for shard in containers.shard(turned, 3):
        rows = containers.read_batch(shard, ["responses"])
        containers.answer(shard, rows, {"values": rows["responses"].float() / 2})
    back = data_plane.read(batch, ["responses", "values"])
    assert torch.equal(back["values"], back["responses"].float() / 2)


ROWS = [2, 0, 2, 2, 0, 2]


def test_case_5_drawn_rows_are_whole_under_their_own_keys(partition):
    """FACTS case 5: every column, object, length and key of a row moves together, read whole or by rank."""
    batch = put(partition, [2, 1, 3], [2, 4, 1])
    fields = ["responses", "input_ids", "num_turns", "data_source"]
    whole = data_plane.read(batch, fields)
    drawn = containers.select_rows(batch, torch.tensor(ROWS))
    assert drawn.keys == [batch.keys[row] for row in ROWS]
    assert drawn.tags == [batch.tags[row] for row in ROWS]
    shards = [containers.read_batch(shard, fields) for shard in containers.shard(drawn, 3)]
    for rows, back in [(ROWS, data_plane.read(drawn, fields)), *zip([[2, 0], [2, 2], [0, 2]], shards, strict=True)]:
        expected = whole.select(rows)
        assert back.keys == expected.keys
        assert all(back[name].equal(expected[name]) for name in fields[:3])
        assert back.objects["data_source"].tolist() == expected.objects["data_source"].tolist()


def test_drawn_rows_are_put_in_another_order_like_any_others(partition):
    drawn = containers.select_rows(put(partition, [2, 1, 3], [2, 4, 1]), torch.tensor(ROWS))
    turned = containers.select_rows(drawn, torch.tensor([5, 4, 3, 2, 1, 0]))
    assert turned.keys == drawn.keys[::-1]
    assert data_plane.read(turned, ["responses"])["responses"].numel() == sum([1, 2, 1, 1, 2, 1])
    assert set(data_plane.field_names(turned)) == set(data_plane.field_names(turned.drawn_from))


def test_nothing_is_written_through_drawn_rows(partition):
    """Columns of drawn rows, written back under the keys, would belong to other rows."""
    drawn = containers.select_rows(put(partition, [2, 1], [2, 4]), torch.tensor([1, 1]))
    rows = data_plane.read(drawn, ["responses"])
    with pytest.raises(DataPlaneError, match=r"\['values'\] of drawn rows cannot be written: 2 rows share 1 keys"):
        data_plane.write(drawn, rows, {"values": rows["responses"].float()})


def test_drawn_rows_that_do_not_divide_into_shards(partition):
    drawn = containers.select_rows(put(partition, [2, 1], [2, 4]), torch.tensor([1, 1, 0]))
    with pytest.raises(BatchSizeError, match="3 rows do not divide into 2 shards"):
        containers.shard(drawn, 2)


def test_a_field_that_no_stage_wrote_is_named(partition):
    batch = put(partition, [2, 2], [1, 2])
    with pytest.raises(DataPlaneError, match=r"no field \['values'\].*Did the stage that writes it run"):
        data_plane.read(batch, ["responses", "values"])


def test_a_field_that_only_some_rows_have_is_named(partition):
    """TransferQueue drops such a field without a word."""
    batch = put(partition, [2, 2], [1, 2])
    half = containers.select_rows(batch, torch.tensor([0]))
    rows = data_plane.read(half, ["responses"])
    data_plane.write(half, rows, {"values": rows["responses"].float()})
    with pytest.raises(DataPlaneError, match="values"):
        data_plane.read(batch, ["values"])


def test_a_cleared_row_is_named(partition):
    """TransferQueue answers a missing key with fewer rows."""
    batch = put(partition, [2, 2], [1, 2])
    data_plane.clear([batch.keys[1]], partition)
    with pytest.raises(DataPlaneError, match=r"1 of 2 rows; missing \['prompt_1_0_0'\]"):
        data_plane.read(batch, ["responses"])


def test_clearing_one_partition_leaves_the_other_alone(cluster):  # noqa: ARG001
    """FACTS case 20: indexes are given out again after a clear, and rows of another partition came back."""
    first, second = (f"test-{uuid.uuid4()}" for _ in range(2))
    old = put(first, [2, 3], [2, 2])
    kept = put(second, [4, 1], [3, 1])
    data_plane.clear(old.keys, first)
    put(f"test-{uuid.uuid4()}", [9, 9], [9, 9])
    assert data_plane.read(kept, ["responses"]).responses.lengths.tolist() == [3, 1]
    with pytest.raises(DataPlaneError, match="0 of 2 rows"):
        data_plane.read(old, ["responses"])


def test_a_length_that_its_tag_denies_is_refused(partition):
    batch = put(partition, [2, 2], [1, 2])
    batch.tags = [{**tag, "response_len": tag["response_len"] + 1} for tag in batch.tags]
    with pytest.raises(DataPlaneError, match=r"'responses' has 1 tokens in row 0, its tags say 2"):
        data_plane.read(batch, ["responses"])


def test_rows_that_do_not_divide_over_ranks_are_refused(partition):
    with pytest.raises(BatchSizeError, match="3 rows do not divide into 2 shards"):
        containers.shard(put(partition, [1, 1, 1], [1, 1, 1]), 2)
