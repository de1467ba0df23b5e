"""The searches for a key and for a commit: on made-up answers, on configs, and on a real repository."""

import dataclasses
import subprocess
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from parity_tests.bisect import ABSENT, differing_keys, find_key, first_changed, minimal, mixed
from parity_tests.bisect_git import CommitRuns, find_commit
from parity_tests.git import TreeState, git
from runtime.config import load_config
from runtime.errors import CaptureError, ConfigError

# The search for items.

ITEMS = [f"k{number}" for number in range(20)]


@given(st.sets(st.sampled_from(ITEMS), min_size=1, max_size=5))
def test_exactly_the_items_that_act_together_are_left(guilty):
    asked = []

    def holds(part):
        asked.append(tuple(part))
        return guilty <= set(part)

    assert set(minimal(ITEMS, holds)) == guilty
    assert len(guilty) > 1 or len(asked) <= 10  # halving: 2 a level, log2(20) < 5 levels


def test_any_one_of_several_that_do_it_alone_is_found():
    assert minimal(ITEMS, lambda part: "k3" in part or "k17" in part) in (["k3"], ["k17"])


@given(st.data())
def test_the_first_changed_commit_is_found_around_those_that_cannot_be_run(data):
    number = data.draw(st.integers(2, 40))
    change = data.draw(st.integers(1, number - 1))
    broken = data.draw(st.sets(st.integers(1, number - 1))) - {number - 1}
    commits = [str(place) for place in range(number)]
    low, high = first_changed(commits, lambda name: None if int(name) in broken else int(name) >= change)
    assert low < change <= high
    assert set(range(low + 1, high)) <= broken


# Keys of configs; a run is made from the config, by rules of which key changes what.


@pytest.fixture
def run(save, synthetic, edit):
    """A run whose step 2 depends on the learning rate, and whose rewards depend on two keys together."""
    made = []

    def train(config):
        records = synthetic()
        if config.actor_rollout_ref.actor.optim.lr != 3e-3:
            losses = records[2, "update_actor"].series["actor/pg_loss"]
            records[2, "update_actor"] = dataclasses.replace(
                records[2, "update_actor"], series={"actor/pg_loss": tuple(loss + 1 for loss in losses)}
            )
        if config.data.max_prompt_length != 32 and config.algorithm.adv_estimator == "rloo":
            scores = records[1, "reward"].batch["token_level_scores"]
            edit(records, (1, "reward"), token_level_scores=scores + 1)
        made.append(config)
        return save(f"run-{len(made)}", records)

    return train


LR = "actor_rollout_ref.actor.optim.lr"
SEED, SAVE, PROMPT = "data.seed", "trainer.save_freq", "data.max_prompt_length"
ESTIMATOR = "algorithm.adv_estimator"


@pytest.fixture(scope="module")
def left():
    return load_config("tiny").config


def test_the_key_of_the_first_difference_is_found_among_others(run, left):
    changes = {LR: 1e-5, SAVE: 5, SEED: 3, ESTIMATOR: "rloo", "trainer.experiment_name": "x"}
    finding = find_key(left, mixed(left, changes), run)
    assert finding.keys == {LR: (3e-3, 1e-5)}
    assert finding.differing == 4
    assert list(finding.lines())[-1] == f"BISECT FOUND {LR} (0.003 -> 1e-05): changes step 2 stage update_actor"


def test_keys_that_only_act_together_are_named_together_and_come_before_a_later_one(run, left):
    finding = find_key(left, mixed(left, {LR: 1e-5, SEED: 3, ESTIMATOR: "rloo", PROMPT: 64}), run)
    assert set(finding.keys) == {ESTIMATOR, PROMPT}
    assert (finding.first.step, finding.first.stage) == (1, "reward")
    assert "together" in list(finding.lines())[-1]


def test_configs_whose_runs_are_equal_name_no_key(run, left):
    finding = find_key(left, mixed(left, {SEED: 3}), run)
    assert (finding.keys, finding.runs) == ({}, 2)
    assert list(finding.lines()) == ["PARITY PASS: of 1 keys that differ, none changes a number"]


def test_a_mixture_that_is_refused_is_passed_over(run, left):
    """The learning rate may only change together with the seed, which changes no number."""

    def picky(config):
        if config.actor_rollout_ref.actor.optim.lr == 1e-5 and config.data.seed != 3:
            raise ConfigError("no such mixture")
        return run(config)

    assert set(find_key(left, mixed(left, {SAVE: 2, LR: 1e-5, SEED: 3}), picky).keys) == {LR, SEED}


def test_what_follows_by_interpolation_is_told_once_and_absent_keys_are_taken_out(left):
    one, other = OmegaConf.create({"a": 1, "b": "${a}", "c": {"d": 4}}), OmegaConf.create({"a": 2, "b": "${a}"})
    assert differing_keys(one, other) == {"a": (1, 2), "c.d": (4, ABSENT)}
    assert "seed" not in mixed(left, {SEED: ABSENT}).data
    with pytest.raises(ConfigError):
        mixed(left, {"data.train_batch_size": 7})


# Commits of a repository whose script writes a capture.

RECORD = """
from rewards import reward  # first, so that a commit that does not run ends at once

import sys
from pathlib import Path

import torch

from parity_tests.capture import CaptureHook, write_manifest
from runtime.identity import TrajectoryKey
from runtime.trainer.hooks import StageRecord
from runtime.trajectories import TrajectoryBatch
from shared_algos.segments import Segments

out = Path(sys.argv[1])
hook = CaptureHook(out)
two = Segments.from_lengths([2, 3])
batch = TrajectoryBatch((TrajectoryKey("a", 0, 0), TrajectoryKey("a", 1, 0)), two, two, {})
for stage, column, value in (("rollout", "responses", 7), ("reward", "token_level_scores", reward(2.0))):
    hook(StageRecord(1, stage, batch.with_columns({column: torch.full((5,), value)})))
write_manifest(out, {"trainer": {"use_v1": True}}, {}, {}, {})
"""
REWARDS = [
    "def reward(x): return x * x",
    "def reward(x): return x *",
    "def reward(x): return x ** 2.0",
    "def reward(x): return x + x + 1",
    "def reward(x): return",
    "def reward(x): return x + x + 2",
]
"""Of the commits in order: the second and the fifth do not run, the fourth and the sixth change the number."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("project")
    git(root, "init", "--quiet", "--initial-branch=main")
    for name, value in (("user.name", "A"), ("user.email", "a@b.c"), ("commit.gpgsign", "false")):
        git(root, "config", name, value)
    (root / "record.py").write_text(textwrap.dedent(RECORD))
    for number, source in enumerate(REWARDS):
        (root / "rewards.py").write_text(source + "\n")
        git(root, "add", ".")
        git(root, "commit", "--quiet", "-m", f"commit {number}")
        git(root, "tag", f"v{number}")
    return root


@pytest.fixture(scope="module")
def runs(repository, tmp_path_factory):
    """Each commit is run once for all tests."""
    return CommitRuns(repository, ["{python}", "record.py", "{out}"], tmp_path_factory.mktemp("runs"))


def test_the_commit_that_changed_a_number_is_found_past_one_that_does_not_run(runs):
    finding = find_commit(runs, "v0", "v3")
    assert [commit.split(" ", 1)[1] for commit in finding.commits] == ["(commit 3)"]
    first = finding.first
    assert (first.step, first.stage, first.field) == (1, "reward", "token_level_scores")
    assert (first.left, first.right) == ("4.0", "5.0")
    assert list(finding.lines())[-1].endswith("(commit 3): changes step 1 stage reward")
    assert len(git(runs.repository, "worktree", "list").splitlines()) == 1
    assert TreeState.read(runs.repository).changes == ()


def test_a_commit_that_cannot_be_run_is_named_with_the_one_it_may_hide(runs):
    finding = find_commit(runs, "v3", "v5")
    assert [commit.split(" ", 1)[1] for commit in finding.commits] == ["(commit 4)", "(commit 5)"]
    assert "one of (the others could not be run)" in list(finding.lines())[-1]


def test_equal_commits_a_broken_end_and_a_wrong_order_are_told(runs):
    assert list(find_commit(runs, "v0", "v2").lines()) == ["PARITY PASS: the numbers of v0 and v2 are equal"]
    with pytest.raises(CaptureError, match=r"(?s)left no finished capture.*SyntaxError"):
        find_commit(runs, "v0", "v1")
    with pytest.raises(CaptureError, match="v2 is no ancestor of v0"):
        find_commit(runs, "v2", "v0")
    with pytest.raises(CaptureError, match="nothere"):
        find_commit(runs, "v0", "nothere")


# The state of a tree.


def test_a_dirty_tree_and_no_repository_are_refused_by_name(repository, tmp_path):
    TreeState.read(repository).refuse_dirty()
    extra = repository / "extra.txt"
    extra.write_text("x")
    try:
        with pytest.raises(CaptureError, match=r"\?\? extra.txt.*--allow-dirty"):
            TreeState.read(repository).refuse_dirty()
    finally:
        extra.unlink()
    assert subprocess.run(["git", "-C", tmp_path, "rev-parse"], capture_output=True, check=False).returncode
    with pytest.raises(CaptureError, match="no git repository"):
        TreeState.read(tmp_path).refuse_dirty()
