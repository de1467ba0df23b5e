"""A batch of trajectories moves whole rows."""

import numpy as np
import pytest
import torch

from runtime.identity import TrajectoryKey
from runtime.trajectories import TrajectoryBatch, level_of
from shared_algos.segments import Segments


def make_batch() -> TrajectoryBatch:
    """Three rows: prompts of 2, 1, 3 tokens, responses of 1, 3, 2; every value tells its row in the hundreds."""
    prompts, responses = Segments.from_lengths([2, 1, 3]), Segments.from_lengths([1, 3, 2])
    sequences = Segments.from_lengths([3, 4, 5])
    return TrajectoryBatch(
        keys=tuple(TrajectoryKey(uid, session, 0) for uid, session in (("a", 0), ("b", 0), ("a", 1))),
        prompts=prompts,
        responses=responses,
        columns={
            "prompts": 100 * prompts.rows + prompts.positions,
            "responses": 100 * responses.rows + 50 + responses.positions,
            "input_ids": 100 * sequences.rows + sequences.positions,
            "num_turns": torch.tensor([2, 4, 6]),
        },
        objects={"data_source": np.array(["x", "y", "z"], dtype=object)},
    )


def test_predictors_point_at_the_token_before_each_response_token():
    batch = make_batch()
    assert batch.predictors.tolist() == [1, 3, 4, 5, 9, 10]


def test_select_moves_every_column_key_and_object_together():
    chosen = make_batch().select([2, 0])
    assert [str(key) for key in chosen.keys] == ["a_1_0", "a_0_0"]
    assert chosen["prompts"].tolist() == [200, 201, 202, 0, 1]
    assert chosen["responses"].tolist() == [250, 251, 50]
    assert chosen["input_ids"].tolist() == [200, 201, 202, 203, 204, 0, 1, 2]
    assert chosen["num_turns"].tolist() == [6, 2]
    assert chosen.objects["data_source"].tolist() == ["z", "x"]


def test_groups_number_uids_alike_in_any_row_order():
    batch = make_batch()
    assert batch.groups.tolist() == [0, 1, 0]
    assert batch.select([1, 2, 0]).groups.tolist() == [1, 0, 0]


def test_a_column_of_the_wrong_length_is_refused_by_name():
    with pytest.raises(ValueError, match=r"'responses' has 5 values, expected 6"):
        make_batch().with_columns({"responses": torch.zeros(5)})


def test_loss_mask_is_the_response_mask():
    batch = make_batch().with_columns({"response_mask": torch.tensor([1, 0, 1, 1, 0, 1])})
    assert "loss_mask" in batch
    assert batch["loss_mask"] is batch["response_mask"]


def test_a_level_is_never_guessed():
    with pytest.raises(KeyError, match="declare its level"):
        level_of("my_column")


def test_a_missing_column_is_named_with_those_there_are():
    with pytest.raises(KeyError, match=r"no column 'values'.*num_turns"):
        make_batch()["values"]
