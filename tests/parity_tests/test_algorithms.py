"""Both trainers run every estimator and every policy loss, and what feeds them, and agree to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity_tests.capture import Capture
from parity_tests.run import run_parity
from runtime.config import load_config
from shared_algos.advantages import ADVANTAGES
from shared_algos.policy_losses import POLICY_LOSSES

ACTOR, ROLLOUT, CORRECTION = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm.rollout_correction"
SMALL = [
    "data.train_batch_size=4",
    f"{ROLLOUT}.n=3",
    f"{ACTOR}.ppo_mini_batch_size=2",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=3",
    f"{ACTOR}.ppo_epochs=2",
    "trainer.total_training_steps=1",
    "trainer.logger=[jsonl]",
]
SETTINGS = {
    "gdpo": ["algorithm.gdpo_reward_keys=[letters,brevity]", "algorithm.gdpo_reward_weights=[1.0,0.5]"],
    # One token in five among all whose covariance is not negative, so that a mini-batch of a hundred tokens has some.
    "clip_cov": [f"{ACTOR}.policy_loss.clip_cov_ratio=0.2", f"{ACTOR}.policy_loss.clip_cov_lb=0.0"],
    "kl_cov": [f"{ACTOR}.policy_loss.kl_cov_ratio=0.2", f"{ACTOR}.policy_loss.ppo_kl_coef=1.0"],
    "dro": [f"{ACTOR}.policy_loss.dro_beta=0.1"],
    "bypass_mode": [
        f"{CORRECTION}.bypass_mode=true",
        f"{CORRECTION}.loss_type=reinforce",
        f"{CORRECTION}.rollout_is=token",
        f"{CORRECTION}.rollout_is_threshold=0.999_1.001",
        f"{CORRECTION}.rollout_is_batch_normalize=true",
        f"{CORRECTION}.rollout_rs=seq_max_k3",
        f"{CORRECTION}.rollout_rs_threshold=1e-4",
    ],
}
"""What a name needs beside itself, or to have something to do on so small a model."""

PAIRS = {
    "grpo": "bypass_mode",
    "grpo_vectorized": "dppo_tv",
    "grpo_passk": "dppo_kl",
    "gdpo": "geo_mean",
    "rloo": "gspo",
    "rloo_vectorized": "dro",
    "opo": "sapo",
    "gpg": "gpg",
    "remax": "clip_cov",
    "reinforce_plus_plus": "kl_cov",
    "reinforce_plus_plus_baseline": "vanilla",
    "optimal_token_baseline": "cispo",
    "tir_optimal_token_baseline": "vanilla",
    "gae": "kl_cov",
}

REWARDS = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    letters = sum(character in ground_truth for character in solution_str) / max(1, len(solution_str))
    brevity = 1 / (1 + len(solution_str))
    return {"score": letters + brevity, "letters": letters, "brevity": brevity}
"""


@pytest.fixture(scope="module")
def rewards(tmp_path_factory) -> list[str]:
    """A reward function that returns its parts."""
    path = tmp_path_factory.mktemp("rewards") / "rewards.py"
    path.write_text(REWARDS)
    return [f"reward.custom_reward_function.path={path}"]


def agreed(overrides: list[str], directory: Path) -> Capture:
    """What V1 did, once legacy was found to have done the same."""
    verdict = run_parity(load_config("tiny", [*SMALL, *overrides]).config, directory / "run", steps=1)
    assert verdict.line == "PARITY PASS"
    return Capture.open(directory / "run" / "v1")


def test_every_name_runs_in_one_of_the_pairs():
    assert set(PAIRS) == set(ADVANTAGES.names())
    assert set(PAIRS.values()) == set(POLICY_LOSSES.names())


@pytest.mark.ray
@pytest.mark.parametrize("estimator", PAIRS)
def test_both_trainers_agree(estimator, rewards, cluster, tmp_path):  # noqa: ARG001
    loss = PAIRS[estimator]
    overrides = [
        f"algorithm.adv_estimator={estimator}",
        *rewards,
        *SETTINGS.get(estimator, ()),
        *SETTINGS.get(loss, ()),
    ]
    if loss != "bypass_mode":
        overrides.append(f"{ACTOR}.policy_loss.loss_mode={loss}")
    capture = agreed(overrides, tmp_path)
    rollout, old, advantage, update = (
        capture.stage(1, stage) for stage in ("rollout", "old_log_prob", "advantage", "update_actor")
    )
    assert advantage.read("advantages").count_nonzero()
    assert ("reward_baselines" in rollout.columns) == (estimator == "remax")
    assert ("sum_pi_squared" in old.columns) == estimator.endswith("optimal_token_baseline")
    if loss == "clip_cov":
        assert any(update.series["actor/pg_clipfrac"])
    if loss == "bypass_mode":
        assert "entropy" not in old.columns
        assert old.read("old_log_probs").equal(rollout.read("rollout_log_probs"))
        assert any(update.series["rollout_corr/rollout_rs_masked_fraction"])


@pytest.mark.ray
def test_rejection_and_weights_in_decoupled_mode(cluster, tmp_path):  # noqa: ARG001
    """Rollout and training differ by rounding alone: the bounds are as narrow, so that some tokens are beyond."""
    capture = agreed(
        [
            f"{CORRECTION}.rollout_is=sequence",
            f"{CORRECTION}.rollout_is_threshold=2.0",
            f"{CORRECTION}.rollout_rs=token_k2",
            f"{CORRECTION}.rollout_rs_threshold=1e-14",
            "trainer.n_gpus_per_node=2",
        ],
        tmp_path,
    )
    advantage, rollout = capture.stage(1, "advantage"), capture.stage(1, "rollout")
    kept, generated = (stage.read("response_mask").sum() for stage in (advantage, rollout))
    assert 0 < kept < generated
    assert not advantage.read("rollout_is_weights")[advantage.read("response_mask") == 0].any()


@pytest.mark.ray
def test_groups_without_spread_are_replaced(tmp_path, cluster):  # noqa: ARG001
    """A reward of 0 or 1 for the first letter: many groups of three agree."""
    path = tmp_path / "rewards.py"
    path.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    right = float(solution_str[:1] in ground_truth)\n"
        "    return {'score': right, 'acc': right}\n"
    )
    capture = agreed(
        [
            f"reward.custom_reward_function.path={path}",
            "algorithm.filter_groups.enable=true",
            "algorithm.filter_groups.metric=acc",
            "data.gen_batch_size=3",
        ],
        tmp_path,
    )
    rollout = capture.stage(1, "rollout")
    assert rollout.series["train/num_gen_batches"][0] > 1
    assert rollout.series["training/filter_groups/evicted_samples"][0] > 0
    scores: dict[str, set[float]] = {}
    for key, info in zip(rollout.keys, rollout.objects["reward_extra_info"], strict=True):
        scores.setdefault(key.uid, set()).add(info["acc"])
    assert len(rollout.keys) == 12
    assert all(len(values) == 2 for values in scores.values())
