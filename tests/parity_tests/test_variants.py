"""Both trainers agree with the switches that ``tiny`` leaves alone; each is on in a run where it meets others."""

from __future__ import annotations

from itertools import chain

import pytest

from parity_tests.capture import Capture
from parity_tests.run import run_parity
from runtime.config import load_config

pytestmark = pytest.mark.ray

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
STEPS = 2
SMALL = [
    "data.train_batch_size=4",
    f"{ROLLOUT}.n=2",
    f"{ACTOR}.ppo_mini_batch_size=2",
    "trainer.logger=[jsonl]",
]
SWITCHES = {
    "use_kl_loss": [f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_coef=0.1"],
    "use_kl_in_reward": ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"],
    # Two sequences at most: the longest has 32 + 16 tokens.
    "use_dynamic_bsz": [
        f"{ACTOR}.use_dynamic_bsz=true",
        f"{ACTOR}.ppo_max_token_len_per_gpu=96",
        "critic.ppo_max_token_len_per_gpu=96",
    ],
    "top_k": [f"{ROLLOUT}.top_k=20"],
    "top_p": [f"{ROLLOUT}.top_p=0.8"],
    "ppo_epochs": [f"{ACTOR}.ppo_epochs=2"],
    "shuffle": [f"{ACTOR}.shuffle=true"],
    "balance_batch": ["trainer.balance_batch=false"],
    "entropy_coeff": [f"{ACTOR}.entropy_coeff=0.01"],
    "critic_warmup": ["trainer.critic_warmup=2"],
    "use_pf_ppo": ["algorithm.use_pf_ppo=true"],
    "use_remove_padding": [
        "actor_rollout_ref.model.use_remove_padding=false",
        "critic.model.use_remove_padding=false",
    ],
    "lr_scheduler_type": [f"{ACTOR}.optim.lr_scheduler_type=cosine", f"{ACTOR}.optim.min_lr_ratio=0.1"],
    "seq-mean-token-mean": [f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"],
    "seq-mean-token-sum": [f"{ACTOR}.loss_agg_mode=seq-mean-token-sum"],
    "seq-mean-token-sum-norm": [f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm"],
    "token-sum": [f"{ACTOR}.loss_agg_mode=token-sum"],
}
"""Overrides of each switch; what the critic does not set for itself follows the actor."""

VARIANTS = {
    ("grpo", 1): "use_kl_loss use_dynamic_bsz ppo_epochs top_k entropy_coeff balance_batch seq-mean-token-mean",
    ("gae", 2): "use_pf_ppo use_kl_in_reward use_dynamic_bsz ppo_epochs shuffle use_remove_padding top_p "
    "seq-mean-token-sum-norm",
    ("gae", 1): "use_pf_ppo critic_warmup use_kl_loss shuffle use_remove_padding entropy_coeff balance_batch top_k "
    "token-sum",
    ("grpo", 2): "use_kl_in_reward use_kl_loss shuffle use_remove_padding top_k top_p lr_scheduler_type "
    "seq-mean-token-sum",
}
"""By estimator and number of ranks."""


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda place: f"{place[0]}, {place[1]} ranks")
def run(request, cluster, tmp_path_factory) -> tuple[str, set[str], Capture]:  # noqa: ARG001
    """The estimator, the switches that are on, and what V1 did, once legacy was found to have done the same."""
    estimator, ranks = request.param
    switches = VARIANTS[request.param].split()
    directory = tmp_path_factory.mktemp(estimator) / "run"
    overrides = [f"algorithm.adv_estimator={estimator}", f"trainer.n_gpus_per_node={ranks}"]
    overrides += chain.from_iterable(SWITCHES[name] for name in switches)
    verdict = run_parity(load_config("tiny", [*SMALL, *overrides]).config, directory, steps=STEPS)
    assert verdict.line == "PARITY PASS"
    assert not verdict.metadata
    return estimator, set(switches), Capture.open(directory / "v1")


def test_every_switch_is_on_somewhere():
    assert {name for switches in VARIANTS.values() for name in switches.split()} == set(SWITCHES)


def test_the_stages_that_are_asked_for_ran(run):
    estimator, switches, capture = run
    reference = {"ref_log_prob"} if switches & {"use_kl_loss", "use_kl_in_reward"} else set()
    critic = {"values", "update_critic"} if estimator == "gae" else set()
    moved = set() if "balance_batch" in switches else {"balance"}
    moved |= {"resample"} if "use_pf_ppo" in switches else set()
    always = {"rollout", "reward", "old_log_prob", "advantage"}
    for step in range(1, STEPS + 1):
        actor = {"update_actor"} if "critic_warmup" not in switches or step == 2 else set()
        assert set(capture.index[step]) == always | reference | critic | moved | actor


def test_the_switches_did_something(run):
    """What can be read off the records: in the last step, when the policy is no longer the reference."""
    _, switches, capture = run
    update, advantage = (capture.stage(STEPS, stage) for stage in ("update_actor", "advantage"))
    rewards = capture.stage(STEPS, "reward").read("token_level_scores"), advantage.read("token_level_rewards")
    assert ("actor/entropy_loss" in update.series) == ("entropy_coeff" in switches)
    assert any(update.series.get("actor/kl_loss", ())) == ("use_kl_loss" in switches)
    assert (not rewards[0].equal(rewards[1])) == ("use_kl_in_reward" in switches)
    if "use_pf_ppo" in switches:
        rows = capture.stage(STEPS, "resample").series["row_order"]
        assert len(set(rows)) < len(rows)
    assert len(update.series["actor/pg_loss"]) == (4 if "ppo_epochs" in switches else 2)
