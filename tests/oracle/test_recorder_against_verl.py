"""The recorder in verl 0.9.1's own process, on its ``DataProto`` and with its ``compute_advantage``, against ours."""

from pathlib import Path

import numpy as np
import pytest
import torch

from parity_tests.capture import Capture, CaptureHook, machine_fingerprint, package_versions, write_manifest
from parity_tests.compare import compare
from parity_tests.importing import SavedStage, import_stages
from parity_tests.recorder import verl_recorder
from parity_tests.verdict import Status
from runtime.advantage import AdvantageStage
from runtime.arrays import object_array
from runtime.identity import TrajectoryKey
from runtime.trainer.hooks import StageRecord
from runtime.trajectories import TrajectoryBatch
from shared_algos.advantages import AdvantageConfig
from shared_algos.segments import Segments

pytestmark = pytest.mark.oracle

PROMPTS, SESSIONS, LONGEST_PROMPT, LONGEST = 5, 3, 6, 9
ROWS = PROMPTS * SESSIONS
ESTIMATORS = ("grpo", "gae")
FAULT = ("old_log_prob", "old_log_probs", 4, 1)
"""In the row that balancing puts at place 4."""


class Inputs:
    """What a rollout and models gave: padded, rows in the order of prompt and session; observations have mask 0."""

    def __init__(self):
        draw = torch.Generator().manual_seed(3)
        floats = torch.rand(5, ROWS, LONGEST, generator=draw)
        prompts = torch.randint(1, LONGEST_PROMPT + 1, (PROMPTS,), generator=draw).repeat_interleave(SESSIONS)
        responses = torch.randint(3, LONGEST + 1, (ROWS,), generator=draw)
        self.exists = torch.cat(
            [
                torch.arange(LONGEST_PROMPT) >= LONGEST_PROMPT - prompts[:, None],
                torch.arange(LONGEST) < responses[:, None],
            ],
            dim=1,
        ).long()
        mask = self.exists[:, LONGEST_PROMPT:].clone()
        mask[::2, 1] = 0
        ids = torch.randint(5, 99, self.exists.shape, generator=draw) * self.exists
        self.generated = {
            "prompts": ids[:, :LONGEST_PROMPT],
            "responses": ids[:, LONGEST_PROMPT:],
            "input_ids": ids,
            "attention_mask": self.exists,
            "position_ids": (self.exists.cumsum(1) - 1).clamp(min=0),
            "response_mask": mask,
            "rollout_log_probs": -floats[0],
        }
        last = torch.arange(LONGEST) == responses[:, None] - 1
        self.outputs = {
            "old_log_probs": -floats[1],
            "entropys": floats[2],
            "values": floats[3],
            "scores": torch.where(last, floats[4].round(decimals=1), 0.0),
        }
        self.order = torch.randperm(ROWS, generator=draw)
        self.prompts = {
            "uid": object_array([f"some_uid_{9 - row}" for row in range(PROMPTS)]),
            "data_source": object_array(["demo/math"] * PROMPTS),
            "extra_info": object_array([{"index": row, "split": "train"} for row in range(PROMPTS)]),
        }

    def batch(self, **columns):
        """Of padded ``[B, R]`` columns, packed."""
        exists = self.exists.bool()
        packed = {name: column[exists[:, LONGEST_PROMPT:]] for name, column in columns.items()}
        keys = (TrajectoryKey(uid, session, 0) for uid in self.prompts["uid"] for session in range(SESSIONS))
        lengths = exists[:, :LONGEST_PROMPT].sum(1), exists[:, LONGEST_PROMPT:].sum(1)
        return TrajectoryBatch(tuple(keys), *map(Segments.from_lengths, lengths), packed)

    def rollout(self):
        given, exists = self.generated, self.exists.bool()
        batch = self.batch(**{name: given[name] for name in ("responses", "response_mask", "rollout_log_probs")})
        batch = batch.with_columns(
            {
                "prompts": given["prompts"][exists[:, :LONGEST_PROMPT]],
                "input_ids": given["input_ids"][exists],
                "position_ids": given["position_ids"][exists],
                "num_turns": torch.full((ROWS,), 2),
            }
        )
        objects = {name: np.repeat(values, SESSIONS) for name, values in self.prompts.items()}
        return TrajectoryBatch(batch.keys, batch.prompts, batch.responses, batch.columns, objects)


@pytest.fixture(scope="module")
def inputs():
    return Inputs()


@pytest.fixture(scope="module")
def recorded(inputs, process_of_verl, tmp_path_factory):
    """Estimator, or ``fault`` -> the capture of verl's run, and its padded batch at the end; ``saved``: its files."""
    folder = tmp_path_factory.mktemp("verl")
    (folder / "saved").mkdir()
    found = {"saved": folder / "saved"}
    with process_of_verl("recorder_side.py") as verl:
        for name, more in (("grpo", {}), ("gae", {"saved": str(found["saved"])}), ("fault", {"fault": FAULT})):
            batch = verl(
                "record",
                recorder=verl_recorder.__file__,
                directory=str(folder / name),
                estimator="grpo" if name == "fault" else name,
                prompts=inputs.prompts,
                generated=inputs.generated,
                outputs=inputs.outputs,
                order=inputs.order,
                **more,
            )
            found[name] = Capture.open(folder / name), batch
    return found


def our_capture(inputs, estimator, directory: Path):
    """The same step by our core, as a trainer's hook records it."""
    hook, outputs = CaptureHook(directory), inputs.outputs
    critic = ["critic.w"] if estimator == "gae" else []
    hook(StageRecord(0, "initial", digests=dict.fromkeys(["actor.w", *critic], "0")))
    hook(StageRecord(1, "rollout", inputs.rollout()))
    places = tuple(map(float, inputs.order.tolist()))
    hook(StageRecord(1, "balance", inputs.batch(), series={"row_order": places}))
    log_probs = inputs.batch(old_log_probs=outputs["old_log_probs"], entropy=outputs["entropys"])
    hook(StageRecord(1, "old_log_prob", log_probs, series={"actor/entropy": (0.25,)}))
    scores = {"token_level_scores": outputs["scores"], "response_mask": inputs.generated["response_mask"]}
    if critic:
        hook(StageRecord(1, "values", inputs.batch(values=outputs["values"])))
        scores["values"] = outputs["values"]
    hook(StageRecord(1, "reward", inputs.batch(rm_scores=outputs["scores"], token_level_scores=outputs["scores"])))
    stage = AdvantageStage(estimator, AdvantageConfig(1.0, 0.95), False, "kl", None, ())
    columns, _ = stage(inputs.batch(**scores), kl_coef=0.0)
    hook(StageRecord(1, "advantage", inputs.batch().with_columns(columns)))
    for name in ("critic", "actor") if critic else ("actor",):
        hook(StageRecord(1, f"update_{name}", digests={f"{name}.w": "1"}))
    config = {
        "trainer": {"use_v1": True, "total_training_steps": 1, "balance_batch": True, "critic_warmup": 0},
        "algorithm": {"adv_estimator": estimator, "use_kl_in_reward": False, "use_pf_ppo": False},
        "actor_rollout_ref": {"actor": {"use_kl_loss": False}},
        "critic": {"enable": None},
    }
    write_manifest(directory, config, package_versions(), {}, machine_fingerprint())
    return Capture.open(directory)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_run_of_verl_compares_clean_with_ours(inputs, recorded, tmp_path, estimator):
    verdict = compare(recorded[estimator][0], our_capture(inputs, estimator, tmp_path / "ours"))
    assert verdict.line == "PARITY PASS"
    assert (verdict.labels, verdict.joined_by_position) == (("legacy", "v1"), False)
    assert {field.status for field in verdict.fields if field.stage != "advantage"} == {Status.EQUAL}
    compared = {(field.stage, field.field) for field in verdict.fields}
    assert {
        ("balance", "row_order"),
        ("old_log_prob", "entropy"),
        ("rollout", "uid"),
        ("reward", "rm_scores"),
    } <= compared
    columns = ("token_level_rewards", "advantages", "returns", "response_mask")
    assert {("advantage", name) for name in columns} <= compared
    assert "were not compared, because a recorder did not see them" in verdict.notes[0]


def test_what_verl_leaves_at_masked_tokens_is_recorded_as_0(inputs, recorded):
    capture, batch = recorded["gae"]
    stage = capture.stage(1, "advantage")
    masked = stage.read("response_mask") == 0
    assert masked.any()
    for name in ("advantages", "returns"):
        there = inputs.exists[inputs.order][:, LONGEST_PROMPT:].bool() & (batch["response_mask"] == 0)
        assert batch[name][there].count_nonzero(), "verl leaves something there"
        assert not stage.read(name)[masked].any()
        assert stage.read(name)[~masked].all()


def test_only_what_a_stage_wrote_is_recorded_under_it_in_canonical_order(inputs, recorded):
    capture = recorded["gae"][0]
    written = {stage.stage: set(stage.columns) for stage in capture.stages()}
    assert written == {
        "rollout": {*inputs.rollout().columns},
        "balance": set(),
        "old_log_prob": {"old_log_probs", "entropy"},
        "values": {"values"},
        "reward": {"rm_scores", "token_level_scores"},
        "advantage": {"token_level_rewards", "advantages", "returns", "response_mask"},
    }
    assert {stage.keys for stage in capture.stages()} == {inputs.rollout().keys}


def test_one_changed_value_is_found_with_its_key_and_token(inputs, recorded, tmp_path):
    verdict = compare(recorded["fault"][0], our_capture(inputs, "grpo", tmp_path / "ours"))
    stage, field, place, token = FAULT
    key = inputs.rollout().keys[int(inputs.order[place])]
    first = verdict.first
    assert (first.stage, first.field, first.key, first.token) == (stage, field, str(key), token)
    assert first.max_abs == pytest.approx(0.5)
    assert sum(field.status.failed for field in verdict.fields) == 1


def test_files_that_verl_saved_are_imported_as_the_same_capture(recorded, tmp_path):
    stages = ("rollout", "balance", "old_log_prob", "values", "reward", "advantage")
    files = [SavedStage(recorded["saved"] / f"{stage}.pkl", stage, 1) for stage in stages]
    imported, capture = import_stages(files, tmp_path / "imported"), recorded["gae"][0]
    assert [stage.columns for stage in imported.stages()] == [stage.columns for stage in capture.stages()]
    assert {stage.keys for stage in imported.stages()} == {stage.keys for stage in capture.stages()}
