"""Which groups dynamic sampling keeps, and when it gives up."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runtime.config import load_config
from runtime.errors import RewardError
from runtime.group_filter import GroupFilter
from runtime.identity import TrajectoryKey
from runtime.trajectories import TrajectoryBatch
from shared_algos.segments import Segments

ON = "algorithm.filter_groups.enable=true"


def batch_of(outcomes: dict[str, list[float]]) -> TrajectoryBatch:
    """One row of one token an outcome, groups interleaved; ``acc`` is the outcome's sign."""
    rows = sorted((session, uid, score) for uid, scores in outcomes.items() for session, score in enumerate(scores))
    segments = Segments.from_lengths([1] * len(rows))
    return TrajectoryBatch(
        keys=tuple(TrajectoryKey(uid, session, 0) for session, uid, _ in rows),
        prompts=segments,
        responses=segments,
        columns={
            "rm_scores": torch.tensor([score for _, _, score in rows]),
            "response_mask": torch.ones(len(rows), dtype=torch.int64),
        },
        objects={"reward_extra_info": np.array([{"acc": float(np.sign(score))} for _, _, score in rows])},
    )


def kept(metric: str, outcomes: dict[str, list[float]]) -> set[str]:
    group_filter = GroupFilter(metric, 0)
    batch = batch_of(outcomes)
    return {str(batch.keys[row]) for row in group_filter.kept_rows(batch)}


def test_groups_without_spread_are_dropped_whole():
    outcomes = {"equal": [3.3] * 7, "spread": [1.0, 2.0], "lone": [0.0]}
    assert kept("reward", outcomes) == {"spread_0_0", "spread_1_0", "lone_0_0"}
    assert kept("acc", outcomes) == {"lone_0_0"}
    assert kept("acc", {"spread": [1.0, -2.0]}) == {"spread_0_0", "spread_1_0"}


def test_a_metric_that_the_reward_function_does_not_return_is_named():
    with pytest.raises(RewardError, match=r"no 'accuracy' for trajectory u_0_0, only \['acc'\]"):
        kept("accuracy", {"u": [1.0, 2.0]})


def outputs_of(rows: list[tuple[str, float, int]]) -> TrajectoryBatch:
    """One row of one token each: key, reward, mask."""
    segments = Segments.from_lengths([1] * len(rows))
    return TrajectoryBatch(
        keys=tuple(TrajectoryKey.parse(key) for key, _, _ in rows),
        prompts=segments,
        responses=segments,
        columns={
            "rm_scores": torch.tensor([reward for _, reward, _ in rows]),
            "response_mask": torch.tensor([mask for _, _, mask in rows]),
        },
    )


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ([("u_0_0", 1.0, 1), ("u_0_1", 1.0, 1)], [0, 1]),
        ([("u_0_0", 0.0, 1), ("u_0_1", 1.0, 1), ("u_1_0", 1.0, 1)], []),
        ([("u_1_0", 0.0, 1), ("u_0_1", 1.0, 1), ("u_0_0", 0.0, 1)], [0, 1, 2]),
        ([("u_0_0", 0.0, 0), ("u_1_0", 1.0, 1), ("u_2_0", 1.0, 1)], []),
        ([("u_0_0", 0.0, 0), ("u_1_0", 1.0, 0)], []),
    ],
    ids=["one session", "earlier outputs do not count", "the last output does", "a rejected row", "all rejected"],
)
def test_sessions_count_as_in_the_estimators(rows, kept):
    assert GroupFilter("reward", 0).kept_rows(outputs_of(rows)) == kept


def test_the_config_turns_it_on():
    assert GroupFilter.from_config(load_config("tiny").config) is None
    settings = [ON, "algorithm.filter_groups.metric=acc", "algorithm.filter_groups.max_num_gen_batches=3"]
    assert GroupFilter.from_config(load_config("tiny", settings).config) == GroupFilter("acc", 3)
    assert GroupFilter("acc", 3).reads == ("response_mask", "reward_extra_info")
    assert GroupFilter("seq_reward", 3).reads == ("response_mask", "rm_scores")
