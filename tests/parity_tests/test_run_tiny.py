"""Both trainers on Ray and TransferQueue: they agree, and a fault planted in either is named where it was planted."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset

from legacy.trainer import LegacyTrainer
from parity_tests.capture import Capture
from parity_tests.compare import compare
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


# Faults, on recorded sessions: the second of each prompt saw an observation, which has mask 0.

OBSERVED = [1, 1, 0, 0, 1]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A config that plays four prompts with two recorded sessions each, whose scores differ."""
    rows = [
        {
            "data_source": "recorded",
            "prompt": [{"role": "user", "content": f"prompt {prompt}"}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "agent_name": "replay_agent",
            "extra_info": {"index": prompt, "sessions": [session(prompt, [1] * 3), session(prompt, OBSERVED)]},
        }
        for prompt in range(4)
    ]
    path = tmp_path_factory.mktemp("recorded") / "sessions.parquet"
    Dataset.from_list(rows).to_parquet(path)
    return tiny(
        f"data.train_files={path}",
        "data.shuffle=false",
        "actor_rollout_ref.rollout.calculate_log_probs=false",
        f"{ACTOR}.optim.lr=1e-4",
    )


def session(prompt: int, mask: list[int]) -> dict[str, object]:
    return {
        "prompt_ids": list(range(10, 14 + prompt)),
        "response_ids": list(range(40 + prompt, 40 + prompt + len(mask))),
        "response_mask": mask,
        "reward_score": float(len(mask) + prompt),
    }


@pytest.fixture(scope="module")
def clean(cluster, recorded, tmp_path_factory) -> dict[str, Capture]:  # noqa: ARG001
    """What both trainers make of the recorded sessions without a fault; they agree."""
    directory = tmp_path_factory.mktemp("clean") / "run"
    assert run_parity(recorded, directory, steps=1).line == "PARITY PASS"
    return {name: Capture.open(directory / name) for name in TRAINERS}


def test_the_reference_agrees_where_tokens_are_masked(clean):
    mask = clean["v1"].stage(1, "rollout").read("response_mask")
    assert mask.tolist() == [1, 1, 1, *OBSERVED] * 4
    assert against_reference(clean["v1"]).line == "PARITY PASS"


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
    """The second session of the first prompt is the first with an observation, and token 2 its first masked one."""
    verdict = run_parity(recorded, tmp_path / "run", steps=1, trainers={**TRAINERS, "legacy": LegacyWithoutMask})
    key = clean["v1"].stage(1, "rollout").keys[1]
    place = f"PARITY DIVERGED at step 1 stage advantage field advantages key {key} token {OBSERVED.index(0)}: legacy "
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
