"""Recipes as people wrote them for verl 0.3 to 0.9 run unmodified under ``verlift exec``, for real."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray

RECIPES = Path(__file__).parents[2] / "examples" / "old_recipes"


def run(script, tmp_path, *overrides, **environment):
    command = [sys.executable, "-m", "verlift.main", "exec", "--", "bash", str(RECIPES / script), *overrides]
    variables = {**os.environ, "CKPTS_DIR": str(tmp_path / "checkpoints"), "DUMP_DIR": str(tmp_path / "dump")}
    # The session's own Ray must not be joined: a recipe starts one.
    variables.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        command, env={**variables, **environment}, capture_output=True, text=True, timeout=550, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def losses(output):
    """The loss that each step logged."""
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+)(?:/\d+)? .* loss (-?[\d.]+)", output)}


def test_dapo_of_2025_draws_until_groups_have_spread_and_trains_actor_and_critic(tmp_path):
    output = run("dapo_2025/run_dapo_tiny.sh", tmp_path)
    assert losses(output).keys() == {1, 2}
    assert "value loss" in output
    assert "reward_model.reward_manager" in output  # what became of an old key is told
    assert (tmp_path / "checkpoints" / "global_step_2" / "critic" / ".metadata").is_file()


def test_remax_of_2026_with_a_worker_class_and_a_group_of_its_own(tmp_path):
    output = run("remax_2026/run_tiny.sh", tmp_path)
    assert losses(output).keys() == {1, 2}
    assert "kl to ref" in output
    assert len((tmp_path / "dump" / "2.jsonl").read_text().splitlines()) == 16


def test_a_custom_estimator_loss_and_reward_manager_in_verls_own_loop(tmp_path):
    output = run("custom_pieces/run_tiny.sh", tmp_path, f"trainer.rollout_data_dir={tmp_path}/played")
    assert losses(output).keys() == {1, 2}
    assert output.count("recipe saw") == 2
    assert "'recipe/score_std'" in output
    assert all(float(norm) > 0 for norm in re.findall(r"grad norm ([\d.]+)", output))
    played = [json.loads(line) for line in (tmp_path / "played" / "2.jsonl").read_text().splitlines()]
    # What was trained on is the manager's score: the task's, less 0.02 for each of at most 16 tokens.
    taken_off = [50 * (row["task_score"] - row["score"]) for row in played]
    assert all(1 <= round(tokens) <= 16 and tokens == pytest.approx(round(tokens), abs=1e-3) for tokens in taken_off)


@pytest.mark.evidence
def test_the_custom_pieces_in_the_loop_of_dapo(tmp_path):
    """The same estimator, loss and reward manager in a loop that drives the groups itself."""
    output = run(
        "dapo_2025/run_dapo_tiny.sh",
        tmp_path,
        "actor_rollout_ref.actor.policy_loss.loss_mode=clip_then_mask",
        "reward_model.reward_manager=length_aware",
        "algorithm.filter_groups.enable=False",
        "algorithm.use_kl_in_reward=False",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
        ADV_ESTIMATOR="median_baseline",
        VERL_USE_EXTERNAL_MODULES="pieces",
        PYTHONPATH=os.pathsep.join([str(RECIPES / "custom_pieces"), os.environ.get("PYTHONPATH", "")]),
    )
    assert losses(output).keys() == {1, 2}
