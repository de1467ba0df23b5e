"""The draw of PF-PPO: by scores, in canonical order, one for each step."""

from dataclasses import replace

import pytest
import torch

from runtime.config import load_config
from runtime.errors import ConfigError
from runtime.identity import TrajectoryKey
from runtime.pf_ppo import Resampling
from runtime.trajectories import TrajectoryBatch
from shared_algos.segments import Segments

RESAMPLING = Resampling("pow", 2.0, seed=42)
LENGTHS = [1, 3, 2, 1, 2, 2]
SCORES = [0.0, 1.0, 2.0, 0.0, 3.0, 100.0]
MASKED = 5


def batch() -> TrajectoryBatch:
    """Six rows; the last one is masked as a whole."""
    responses = Segments.from_lengths(LENGTHS)
    scores = torch.zeros(responses.num_tokens)
    scores[responses.offsets[1:] - 1] = torch.tensor(SCORES)
    keys = tuple(TrajectoryKey(f"uid{row // 2}", row % 2, 0) for row in range(len(LENGTHS)))
    columns = {"token_level_scores": scores, "response_mask": (responses.rows != MASKED).long()}
    return TrajectoryBatch(keys, Segments.from_lengths([1] * len(LENGTHS)), responses, columns)


def test_rows_without_a_score_and_masked_rows_are_not_drawn():
    for step in range(1, 30):
        rows = RESAMPLING.drawn_rows(batch(), step)
        assert set(rows[:MASKED]) <= {1, 2, 4}
        assert rows[MASKED] == MASKED


def test_a_draw_is_of_its_seed_and_step():
    rows = [RESAMPLING.drawn_rows(batch(), step) for step in range(1, 6)]
    assert rows == [RESAMPLING.drawn_rows(batch(), step) for step in range(1, 6)]
    assert len({tuple(drawn) for drawn in rows}) > 1
    assert rows != [replace(RESAMPLING, seed=43).drawn_rows(batch(), step) for step in range(1, 6)]


def test_every_column_of_a_row_moves_with_its_key():
    """FACTS case 5: 4 rows of 4 uids, drawn anew."""
    rows = RESAMPLING.drawn_rows(batch(), 1)
    drawn = batch().select(rows)
    scores = drawn.responses.sum(drawn["token_level_scores"])
    expected = {key: (score, length) for key, score, length in zip(batch().keys, SCORES, LENGTHS, strict=True)}
    assert len(set(drawn.keys)) < len(drawn)
    for place, key in enumerate(drawn.keys):
        assert (float(scores[place]), int(drawn.responses.lengths[place])) == expected[key]


def test_settings_come_from_the_config():
    switches = ["algorithm.adv_estimator=gae", "algorithm.use_pf_ppo=true", "algorithm.pf_ppo.reweight_method=max_min"]
    config = load_config("tiny", [*switches, "algorithm.pf_ppo.weight_pow=3", "runtime.seed=7"]).config
    assert Resampling.from_config(config) == Resampling("max_min", 3, 7)


@pytest.mark.parametrize("estimator", ["grpo", "reinforce_plus_plus"])
def test_other_estimators_are_refused_because_verl_ignores_the_switch_there(estimator):
    with pytest.raises(ConfigError, match=r"use_pf_ppo=true needs algorithm\.adv_estimator=gae"):
        load_config("tiny", ["algorithm.use_pf_ppo=true", f"algorithm.adv_estimator={estimator}"])
