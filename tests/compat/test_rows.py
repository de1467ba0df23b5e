"""The padded batch and the packed one hold the same tokens."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compat.errors import LayoutError
from compat.protocol import DataProto
from compat.rows import answer, keys_of, read_batch
from compat.trajectories import to_dataproto
from runtime import containers
from runtime.agent_loop import AgentLoopOutput, as_trajectories
from runtime.identity import TrajectoryKey
from runtime.trajectories import TrajectoryBatch

ROWS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5)), min_size=1, max_size=6)
LIMITS = (9, 9)
FIELDS = ["prompts", "responses", "input_ids", "position_ids", "response_mask", "rm_scores", "num_turns", "source"]


def make(rows: list[tuple[int, int]]) -> TrajectoryBatch:
    keys = [TrajectoryKey(f"uid_{row // 2}", row % 2, 0) for row in range(len(rows))]
    outputs = [
        AgentLoopOutput(
            prompt_ids=[100 * row + place for place in range(1, prompt + 1)],
            response_ids=[100 * row + 50 + place for place in range(response)],
            response_mask=[place % 2 for place in range(response)],
            reward_score=float(row + 1),
        )
        for row, (prompt, response) in enumerate(rows)
    ]
    return as_trajectories(keys, outputs, [{"source": f"s{row}"} for row in range(len(rows))], LIMITS)


@given(ROWS)
def test_padding_and_packing_are_inverse(rows):
    batch = make(rows)
    back = read_batch(to_dataproto(batch, 6, 5, pad_token_id=0), FIELDS)
    assert back.keys == batch.keys
    assert torch.equal(back.prompts.offsets, batch.prompts.offsets)
    assert torch.equal(back.responses.offsets, batch.responses.offsets)
    for name in FIELDS[:-1]:
        assert torch.equal(back[name], batch[name]), name
    assert back.objects["source"].tolist() == batch.objects["source"].tolist()


def test_a_zero_token_and_a_masked_tail_are_not_padding():
    """Lengths come from attention_mask: a pad id inside a response, or an observation at its end, is still a token."""
    output = AgentLoopOutput(prompt_ids=[0, 7], response_ids=[0, 9, 0], response_mask=[1, 1, 0], reward_score=1.0)
    batch = as_trajectories([TrajectoryKey("u", 0, 0)], [output], [{}], LIMITS)
    back = read_batch(to_dataproto(batch, 4, 6, pad_token_id=0), ["prompts", "responses", "response_mask", "rm_scores"])
    assert back["prompts"].tolist() == [0, 7]
    assert back["responses"].tolist() == [0, 9, 0]
    assert back["response_mask"].tolist() == [1, 1, 0]
    assert back["rm_scores"].tolist() == [0.0, 0.0, 1.0]


def test_layout_is_verls():
    data = to_dataproto(make([(2, 1), (3, 2)]), 4, 3, pad_token_id=9)
    assert data.batch["prompts"].tolist() == [[9, 9, 1, 2], [9, 101, 102, 103]]
    assert data.batch["responses"].tolist() == [[50, 9, 9], [150, 151, 9]]
    assert data.batch["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 0]]
    assert data.batch["position_ids"].tolist() == [[0, 0, 0, 1, 2, 2, 2], [0, 0, 1, 2, 3, 4, 4]]
    assert data.batch["rm_scores"].tolist() == [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]


def test_answer_pads_new_columns_to_the_batch():
    data = to_dataproto(make([(2, 1), (3, 2)]), 4, 3, pad_token_id=9)
    batch = read_batch(data, ["responses"])
    made = answer(data, batch, {"values": batch["responses"].float()})
    assert made.batch["values"].tolist() == [[50.0, 0.0, 0.0], [150.0, 151.0, 0.0]]
    assert list(made.batch.keys()) == ["values"]


def test_rows_without_session_ids_are_numbered_within_their_uid():
    data = DataProto.from_dict(
        tensors={"x": torch.zeros(4)}, non_tensors={"uid": np.array(["a", "b", "a", "a"], dtype=object)}
    )
    assert [str(key) for key in keys_of(data)] == ["a_0_0", "b_0_0", "a_1_0", "a_2_0"]


def test_select_rows_moves_whole_rows():
    data = to_dataproto(make([(2, 1), (3, 2)]), 4, 3, pad_token_id=9)
    turned = containers.select_rows(data, torch.tensor([1, 0]))
    assert [str(key) for key in keys_of(turned)] == ["uid_0_1_0", "uid_0_0_0"]
    assert turned.batch["responses"][0].tolist() == [150, 151, 9]
    assert turned.non_tensor_batch["source"].tolist() == ["s1", "s0"]


def test_a_missing_column_is_named():
    data = to_dataproto(make([(2, 1)]), 4, 3, pad_token_id=9)
    with pytest.raises(KeyError, match=r"has no \['values'\]"):
        read_batch(data, ["responses", "values"])


def test_columns_of_responses_do_not_need_the_prompts():
    data = to_dataproto(make([(2, 1), (3, 2)]), 4, 3, pad_token_id=9)
    bare = data.select(["responses", "input_ids", "attention_mask", "position_ids"], [])
    assert torch.equal(read_batch(bare, ["input_ids"])["input_ids"], read_batch(data, ["input_ids"])["input_ids"])


def test_padding_between_tokens_is_refused_by_row():
    data = to_dataproto(make([(2, 2), (3, 3)]), 4, 3, pad_token_id=9)
    data.batch["attention_mask"][1, 5] = 0
    with pytest.raises(LayoutError, match="row 1 has padding between its tokens"):
        read_batch(data, ["responses"])
