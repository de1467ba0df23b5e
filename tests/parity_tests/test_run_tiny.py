"""Both trainers on Ray and TransferQueue: they agree, and a fault planted in either is named where it was planted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from legacy.trainer import LegacyTrainer
from parity_tests.capture import Capture
from parity_tests.compare import compare
from parity_tests.inspection_report import exit_code, inspect_folder
from parity_tests.run import TRAINERS, capture_run, for_parity, run_parity
from parity_tests.third_opinion import against_reference
from runtime.advantage import AdvantageStage
from runtime.config import load_config
from runtime.identity import TrajectoryKey
from runtime.trajectories import TrajectoryBatch
from v1 import data_plane
from v1.trainer import V1Trainer

pytestmark = pytest.mark.ray

ACTOR = "actor_rollout_ref.actor"
SMALL = [
    "data.train_batch_size=4",
    "data.max_response_length=8",
    "actor_rollout_ref.rollout.n=2",
    f"{ACTOR}.ppo_mini_batch_size=2",
    "trainer.logger=[jsonl]",
]


def tiny(*overrides: str):
    return load_config("tiny", [*SMALL, *overrides]).config


# Agreement.


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_both_trainers_agree(cluster, tmp_path, estimator, ranks):  # noqa: ARG001
    config = tiny(f"algorithm.adv_estimator={estimator}", f"trainer.n_gpus_per_node={ranks}")
    verdict = run_parity(config, tmp_path / "run", steps=2)
    assert verdict.line == "PARITY PASS"
    assert verdict.same_fingerprint
    assert not verdict.metadata
    assert exit_code(inspect_folder(tmp_path / "run")) == 0
    expected = ["rollout", "reward", "balance", "old_log_prob", "advantage", "update_actor"]
    if estimator == "gae":
        expected[4:4] = ["values"]
        expected[6:6] = ["update_critic"]
    for step in (1, 2):
        assert [*dict.fromkeys(f.stage for f in verdict.fields if f.step == step and f.stage != "weights")] == expected


# Agreement that proves nothing.


def test_equal_rewards_are_vacuous(cluster, tmp_path):  # noqa: ARG001
    function = tmp_path / "constant.py"
    function.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"
    )
    verdict = run_parity(tiny(f"reward.custom_reward_function.path={function}"), tmp_path / "run", steps=1)
    assert verdict.first is None
    assert verdict.exit_code == 1
    groups = "only 0 of 4 groups have different rewards, fewer than half"
    assert verdict.line == f"PARITY VACUOUS: all advantages are zero; {groups}"


def test_a_learning_rate_of_zero_is_vacuous(cluster, tmp_path):  # noqa: ARG001
    verdict = run_parity(tiny(f"{ACTOR}.optim.lr=0"), tmp_path / "run", steps=1)
    assert verdict.exit_code == 1
    assert verdict.line == "PARITY VACUOUS: the actor has no weight that changed between the start and step 1"


# Faults, on the recorded sessions of examples/: the second of each prompt called a tool, whose answer has mask 0.

EXAMPLE = Path(__file__).parents[2] / "examples" / "recorded_sessions"
MASKS = [[1, 1], [1] * 5 + [0] * 4 + [1] * 2]
"""Of the two sessions of the first prompt."""


@pytest.fixture(scope="module")
def recorded():
    """The example's config, whichever folder the tests run in."""
    overrides = [f"data.train_files={EXAMPLE / 'sessions.jsonl'}", "trainer.logger=[jsonl]"]
    return load_config("recorded", overrides, EXAMPLE).config


@pytest.fixture(scope="module")
def clean(cluster, recorded, tmp_path_factory) -> dict[str, Capture]:  # noqa: ARG001
    """What both trainers make of the recorded sessions without a fault; they agree."""
    directory = tmp_path_factory.mktemp("clean") / "run"
    assert run_parity(recorded, directory, steps=1).line == "PARITY PASS"
    return {name: Capture.open(directory / name) for name in TRAINERS}


def test_the_reference_agrees_where_tokens_are_masked(clean):
    rows = clean["v1"].stage(1, "rollout")
    assert [row.tolist() for row in rows.responses.split(rows.read("response_mask"))[:2]] == MASKS
    assert against_reference(clean["v1"]).line == "PARITY PASS"


@pytest.mark.parametrize("side", ["legacy", "v1"])
def test_every_object_of_a_row_is_recorded(clean, side):
    """The columns of the file, what the dataset adds, and the prompt's own name."""
    rows = clean[side].stage(1, "rollout")
    of_the_file = {"data_source", "prompt", "reward_model", "agent_name", "extra_info"}
    added = {"raw_prompt", "index", "row_number", "tools_kwargs", "interaction_kwargs", "uid"}
    assert set(rows.objects) == of_the_file | added
    assert rows.objects["reward_model"][0] == {"style": "rule", "ground_truth": "7"}
    assert rows.objects["uid"] == [key.uid for key in rows.keys]


class TruthsSwapped(LegacyTrainer):
    """Rows bring the ground truth of other prompts; scores are recorded, so that none of them tells."""

    def rollout(self, prompts):
        batch, series = super().rollout(prompts)
        batch.non_tensor_batch["reward_model"] = batch.non_tensor_batch["reward_model"][::-1].copy()
        return batch, series


def test_swapped_ground_truths_are_named(clean, recorded, tmp_path):
    directory = tmp_path / "run"
    verdict = compare(capture_run(TruthsSwapped, for_parity(recorded, "legacy", 1, directory), directory), clean["v1"])
    key = clean["v1"].stage(1, "rollout").keys[0]
    place = f"PARITY DIVERGED at step 1 stage rollout field reward_model key {key} token -: "
    assert verdict.line == f"{place}legacy ['ground_truth'] '99', v1 ['ground_truth'] '7'"
    assert {field.field for field in verdict.fields if field.status.failed} == {"reward_model"}


class MaskSkipped(AdvantageStage):
    """The advantage of a batch whose mask is taken to be 1 everywhere."""

    def __call__(self, batch: TrajectoryBatch, kl_coef: float):
        unmasked = batch.with_columns({"response_mask": torch.ones_like(batch["response_mask"])})
        columns, scalars = super().__call__(unmasked, kl_coef)
        return {**columns, "response_mask": batch["response_mask"]}, scalars


class LegacyWithoutMask(LegacyTrainer):
    def _start_workers(self):
        workers = super()._start_workers()
        self.advantage_stage = MaskSkipped.from_config(self.config)
        return workers


def test_an_advantage_without_its_mask_is_named(clean, recorded, tmp_path):
    """The second session of the first prompt is the first with an observation."""
    verdict = run_parity(recorded, tmp_path / "run", steps=1, trainers={**TRAINERS, "legacy": LegacyWithoutMask})
    key = clean["v1"].stage(1, "rollout").keys[1]
    place = f"PARITY DIVERGED at step 1 stage advantage field advantages key {key} token {MASKS[1].index(0)}: legacy "
    assert verdict.exit_code == 1
    assert verdict.line.startswith(place)
    assert verdict.line.endswith(", v1 0.0")


class OverwritingV1(V1Trainer):
    """Adds 1 in TransferQueue to the last value of one trajectory before a stage runs."""

    overwritten: TrajectoryKey

    def overwrite(self, batch: data_plane.KVBatchMeta, field: str) -> None:
        rows = data_plane.read(batch, [field])
        values = rows[field].clone()
        values[-1] += 1
        data_plane.write(batch, rows, {field: values})
        type(self).overwritten = rows.keys[-1]


class RewardsOverwritten(OverwritingV1):
    """Between ``rollout`` and ``reward``."""

    def reward(self, batch):
        self.overwrite(batch, "rm_scores")
        return super().reward(batch)


class ScoresOverwritten(OverwritingV1):
    """Between ``old_log_prob`` and ``advantage``."""

    def advantage(self, batch):
        self.overwrite(batch, "token_level_scores")
        return super().advantage(batch)


@pytest.mark.parametrize(
    ("trainer", "stage", "field"),
    [(RewardsOverwritten, "reward", "rm_scores"), (ScoresOverwritten, "advantage", "token_level_rewards")],
)
def test_a_value_overwritten_in_transfer_queue_is_named(clean, recorded, tmp_path, trainer, stage, field):
    """The controller holds keys alone: if trajectories lay anywhere else, the stage would not see the new value."""
    directory = tmp_path / "run"
    capture = capture_run(trainer, for_parity(recorded, "v1", 1, directory), directory)
    verdict = compare(clean["legacy"], capture)
    rows = capture.stage(1, "rollout")
    key = trainer.overwritten
    token = int(rows.responses.lengths[rows.keys.index(key)]) - 1
    assert verdict.exit_code == 1
    assert verdict.line.startswith(f"PARITY DIVERGED at step 1 stage {stage} field {field} key {key} token {token}: ")
