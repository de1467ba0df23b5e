"""The advantage stage on a batch in memory: what it reads, corrects and writes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from runtime.advantage import AdvantageStage
from runtime.config import load_config
from runtime.errors import ConfigError, RewardError
from runtime.identity import TrajectoryKey
from runtime.trajectories import TrajectoryBatch
from shared_algos.errors import NonFiniteError
from shared_algos.segments import Segments

CORRECTION = "algorithm.rollout_correction"
THERE = {"rollout_log_probs", "old_log_probs", "reward_extra_info"}


def stage(*overrides: str) -> AdvantageStage:
    return AdvantageStage.from_config(load_config("tiny", overrides).config)


@pytest.fixture
def batch() -> TrajectoryBatch:
    """Two rows of one prompt, of three and of two tokens; the rollout was twice as sure of the last token."""
    responses = Segments.from_lengths([3, 2])
    return TrajectoryBatch(
        keys=(TrajectoryKey("u", 0, 0), TrajectoryKey("u", 1, 0)),
        prompts=Segments.from_lengths([1, 1]),
        responses=responses,
        columns={
            "response_mask": torch.ones(5, dtype=torch.int64),
            "token_level_scores": torch.tensor([0.0, 0, 1, 0, 3]),
            "old_log_probs": torch.tensor([-1.0, -1, -1, -1, -2]),
            "rollout_log_probs": torch.tensor([-1.0, -1, -1, -1, -2 + np.log(2)]),
            "ref_log_prob": torch.tensor([-1.5, -1, -1, -1, -2]),
        },
        objects={"reward_extra_info": np.array([{"right": 1.0, "short": 0.0}, {"right": 0.0, "short": 2.0}])},
    )


def test_without_correction_the_mask_stays_and_the_distance_is_reported(batch):
    columns, scalars = stage()(batch, 0.0)
    assert columns["response_mask"].tolist() == [1] * 5
    assert "rollout_is_weights" not in columns
    assert scalars["rollout_corr/kl"] == pytest.approx(np.log(2) / 5)


def test_rejection_changes_the_mask_before_advantages(batch):
    """Of row 1 only its first token is left, with the outcome of the rejected one; the group still has two sessions."""
    columns, _ = stage(f"{CORRECTION}.rollout_rs=token_k1", f"{CORRECTION}.rollout_rs_threshold=1.5")(batch, 0.0)
    assert columns["response_mask"].tolist() == [1, 1, 1, 1, 0]
    assert columns["advantages"].tolist() == pytest.approx([-0.7071] * 3 + [0.7071, 0], abs=1e-4)


def test_a_row_rejected_whole_leaves_its_group(batch):
    columns, _ = stage(
        "algorithm.norm_adv_by_std_in_grpo=false",
        f"{CORRECTION}.rollout_rs=seq_max_k2",
        f"{CORRECTION}.rollout_rs_threshold=0.1",
    )(batch, 0.0)
    assert columns["response_mask"].tolist() == [1, 1, 1, 0, 0]
    assert columns["advantages"].tolist() == [1, 1, 1, 0, 0]


def test_weights_are_written(batch):
    columns, _ = stage(f"{CORRECTION}.rollout_is=token")(batch, 0.0)
    assert columns["rollout_is_weights"].tolist() == pytest.approx([1, 1, 1, 1, 0.5])


def test_kl_in_the_reward_comes_first(batch):
    kl = stage("algorithm.use_kl_in_reward=true")
    columns, scalars = kl(batch, 0.1)
    assert columns["token_level_rewards"].tolist() == pytest.approx([-0.05, 0, 1, 0, 3])
    assert scalars["actor/reward_kl_penalty_coeff"] == 0.1


def test_the_kl_of_a_rejected_token_goes_with_it(batch):
    """The last token of row 1 is far from the reference and is rejected: what is left of it is its score."""
    far = batch.with_columns({"ref_log_prob": torch.tensor([-1.0, -1, -1, -1, -9])})
    rejection = [f"{CORRECTION}.rollout_rs=token_k1", f"{CORRECTION}.rollout_rs_threshold=1.5"]
    columns, _ = stage("algorithm.use_kl_in_reward=true", *rejection)(far, 0.1)
    assert columns["response_mask"].tolist() == [1, 1, 1, 1, 0]
    assert columns["token_level_rewards"].tolist() == [0, 0, 1, 0, 3]


def test_log_probs_that_are_not_finite_stop_a_run_only_where_they_are_used(batch):
    bad = batch.with_columns({"rollout_log_probs": torch.tensor([-1.0, torch.nan, -1, -1, -1])})
    columns, scalars = stage()(bad, 0.0)
    assert scalars == {}
    assert columns["advantages"].isfinite().all()
    with pytest.raises(NonFiniteError):
        stage(f"{CORRECTION}.rollout_is=token")(bad, 0.0)


def test_a_score_that_is_no_number_names_its_row(batch):
    words = np.array([{"right": "yes", "short": 0.0}, {"right": 0.0, "short": 2.0}])
    gdpo = stage("algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[right,short]")
    with pytest.raises(RewardError, match="right='yes' for trajectory u_0_0; it must be a number"):
        gdpo(replace(batch, objects={"reward_extra_info": words}), 0.0)
    with pytest.raises(RewardError, match="no trajectory has any; let it return a dict"):
        gdpo.reads(set())


def test_gdpo_reads_the_scores_that_the_config_names(batch):
    gdpo = stage("algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[right,short]")
    assert "reward_extra_info" in gdpo.reads(THERE)
    columns, _ = gdpo(batch, 0.0)
    # Normalised components are equal and opposite but for the epsilon in the divisor.
    assert columns["advantages"].tolist() == pytest.approx([0] * 5, abs=0.01)
    weighted = stage(
        "algorithm.adv_estimator=gdpo",
        "algorithm.gdpo_reward_keys=[right,short]",
        "algorithm.gdpo_reward_weights=[2,1]",
    )
    columns, _ = weighted(batch, 0.0)
    assert columns["advantages"][0] > 0 > columns["advantages"][4]


def test_a_score_that_is_not_there_names_row_and_key(batch):
    gdpo = stage("algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[right,kind]")
    with pytest.raises(RewardError, match=r"no 'kind' for trajectory u_0_0, only \['right', 'short'\]"):
        gdpo(batch, 0.0)


def test_log_probs_of_the_rollout_are_read_where_they_are(batch):
    assert "rollout_log_probs" in stage().reads(THERE)
    assert "rollout_log_probs" not in stage().reads(set())
    bare = {name: column for name, column in batch.columns.items() if name != "rollout_log_probs"}
    _, scalars = stage()(replace(batch, columns=bare), 0.0)
    assert scalars == {}


def test_a_correction_without_log_probs_is_refused():
    with pytest.raises(ConfigError, match="needs rollout_log_probs, which the agent loops did not return"):
        stage(f"{CORRECTION}.rollout_is=token").reads(set())


def test_bypass_mode_leaves_the_correction_to_the_loss(batch):
    bypass = stage(f"{CORRECTION}.bypass_mode=true", f"{CORRECTION}.rollout_is=token")
    assert bypass.reads(THERE) == ("response_mask", "token_level_scores")
    columns, scalars = bypass(batch, 0.0)
    assert "rollout_is_weights" not in columns
    assert scalars == {}
