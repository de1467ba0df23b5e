"""Each thing that the checklist asks for is told, and each planted fault is found at its layer and trajectory."""

import dataclasses
import json

import pytest
import torch

from parity_tests.capture import CaptureHook, machine_fingerprint, write_manifest
from parity_tests.inspection import inspect_capture
from parity_tests.inspection_report import as_json, exit_code, inspect_folder, lines_of
from parity_tests.synthetic import Size, synthetic_capture
from runtime.trainer.hooks import StageRecord
from runtime.trajectories import TrajectoryBatch
from shared_algos.segments import Segments
from verlift.main import main

SIZE = Size(rows=12, longest=9, sessions=3, prompt=5)


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    return synthetic_capture(tmp_path_factory.mktemp("clean") / "v1", SIZE, use_v1=True)


@pytest.fixture
def changed(tmp_path, clean):
    """The clean capture with a batch of its stages changed; or its config, by key."""

    def make(stage=None, change=lambda batch: batch, name="changed", **config):
        hook = CaptureHook(tmp_path / name)
        for each in clean.stages():
            batch = None
            if each.keys:
                columns = {column: each.read(column) for column in each.columns}
                batch = TrajectoryBatch(each.keys, each.prompts, each.responses, columns)
                batch = change(batch) if each.stage == stage else batch
            hook(StageRecord(each.step, each.stage, batch, each.series, each.digests))
        settings = json.loads(json.dumps(clean.config))
        for key, value in config.items():
            group, _, rest = key.partition("__")
            settings[group] |= {rest: value}
        write_manifest(tmp_path / name, settings, {}, {}, machine_fingerprint())
        return next(iter(inspect_folder(tmp_path / name)))

    return make


def told(inspection):
    return {(fact.layer, fact.name): fact.value for fact in inspection.facts}


def found(inspection):
    return [(finding.layer, finding.key, finding.text) for finding in inspection.findings]


def test_every_layer_is_told(clean):
    inspection = inspect_capture(clean)
    facts = told(inspection)
    rollout, scores = clean.stage(1, "rollout"), clean.stage(1, "reward").row_sums("rm_scores")
    assert inspection.findings == ()
    assert facts["dataset row", "prompts"] == 4
    assert facts["dataset row", "fields"] == {"extra_info": "dict"}
    assert facts["dataset row", "not there"] == "raw_prompt, reward_model, data_source"
    assert facts["collate", "container"] == "KVBatchMeta, jagged [B, j]"
    assert facts["collate", "dim 0 of columns"] == 12
    assert facts["collate", "lengths of objects"] == {"extra_info": 12}
    assert facts["rollout keys", "distinct sessions a uid"] == {"3": 4}
    lengths = (rollout.prompts.lengths + rollout.responses.lengths).tolist()
    assert facts["trajectory tags", "seq_len"] == {
        "min": min(lengths),
        "mean": round(sum(lengths) / 12, 4),
        "max": max(lengths),
    }
    assert facts["masks", "attention_mask"] == sum(lengths)
    assert facts["masks", "loss tokens (response_mask) after rollout"] == rollout.responses.num_tokens
    assert facts["masks", "input_ids = prompt + response"] == "12 rows"
    assert facts["rewards", "rm_scores.sum() a row"]["max"] == float(scores.max())
    assert facts["groups", "with different rewards"] == "4 of 4"
    assert facts["update", "actor_rollout_ref.actor mini-batch"] == "4 prompts x n = 12, 12 a rank"
    tokens = rollout.responses.num_tokens
    assert facts["stage advantage", "returns"] == f"response [{tokens}] float32, lengths 1 to 9"


def test_a_group_with_fewer_sessions_and_a_batch_that_does_not_divide(changed, clean):
    inspection = changed("rollout", lambda batch: batch.select([row for row in range(12) if row != 4]))
    uid = clean.stage(1, "rollout").keys[4].uid
    assert found(inspection) == [
        ("rollout keys", uid, "2 distinct sessions where actor_rollout_ref.rollout.n = 3"),
        ("update", None, "batch = 11 does not divide by actor_rollout_ref.actor.ppo_mini_batch_size x n = 12"),
    ]


def test_a_session_with_two_outputs_is_one_session(changed):
    def split(batch):
        keys = [dataclasses.replace(key, index=0) for key in batch.keys]
        return dataclasses.replace(batch, keys=(*keys[:-1], dataclasses.replace(keys[-2], index=1)))

    texts = [text for _, _, text in found(changed("rollout", split))]
    assert texts == ["2 distinct sessions where actor_rollout_ref.rollout.n = 3"]


@pytest.mark.parametrize("ranks", [5, 8])
def test_ranks_that_do_not_divide(changed, ranks):
    texts = [text for _, _, text in found(changed(trainer__n_gpus_per_node=ranks))]
    assert f"batch = 12 does not divide by ranks = {ranks}" in texts
    assert f"actor_rollout_ref.actor.ppo_mini_batch_size x n = 12 does not divide by ranks = {ranks}" in texts


def test_a_reward_on_a_masked_token_and_a_row_without_a_loss_token(changed, clean):
    rollout = clean.stage(1, "rollout")
    last = int(rollout.responses.offsets[3]) - 1
    reward = float(clean.stage(1, "reward").read("rm_scores")[last])
    token = int(rollout.responses.lengths[2]) - 1

    def mask_last(batch):
        mask = batch["response_mask"].clone()
        mask[last] = 0
        mask[batch.responses.offsets[11] :] = 0
        return batch.with_columns({"response_mask": mask})

    findings = found(changed("rollout", mask_last))
    at = f"reward {reward:g} on token {token}, whose response_mask is 0"
    assert ("rewards", str(rollout.keys[2]), at) in findings
    assert ("masks", str(rollout.keys[11]), "all 9 response tokens have mask 0") in findings


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("response_mask", 2, "response_mask after rollout has values other than 0 and 1"),
        ("input_ids", 1, "input_ids are not the prompt's tokens and then the response's"),
    ],
)
def test_masks_and_tokens_that_contradict_the_lengths(changed, column, value, text):
    def change(batch):
        values = batch[column].clone()
        values[-1] = value
        return batch.with_columns({column: values})

    assert [told for _, _, told in found(changed("rollout", change))] == [text]


def test_a_response_without_tokens(changed, clean):
    def change(batch):
        lengths = batch.responses.lengths.clone()
        lengths[0] = 0
        rest = {"responses": batch["responses"][batch.responses.offsets[1] :]}
        return TrajectoryBatch(batch.keys, batch.prompts, Segments.from_lengths(lengths), rest)

    key = str(clean.stage(1, "rollout").keys[0])
    assert ("trajectory tags", key, "the response has no token") in found(changed("rollout", change))


def test_a_response_that_is_wider_than_the_legacy_container(changed):
    inspection = changed(trainer__use_v1=False, data__max_prompt_length=5, data__max_response_length=8)
    texts = [text for _, _, text in found(inspection)]
    assert "a response has 9 tokens where data.max_response_length = 8" in texts
    assert told(inspection)["collate", "shape of sequence columns"] == "[12, 13]"


def test_a_reward_that_is_no_number(changed, clean):
    def change(batch):
        return batch.with_columns({"rm_scores": batch["rm_scores"].masked_fill(batch["rm_scores"] != 0, torch.nan)})

    keys = [key for _, key, text in found(changed("reward", change)) if text == "the reward is nan"]
    assert keys == [str(key) for key in clean.stage(1, "rollout").keys]


def inspected(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["inspect", *map(str, arguments)])
    return ended.value.code


def test_both_sides_of_a_run_are_in_one_table_and_differences_marked(tmp_path, capsys):
    synthetic_capture(tmp_path / "legacy", SIZE, use_v1=False)
    synthetic_capture(tmp_path / "v1", SIZE, use_v1=True, seed=1)
    assert inspected(tmp_path) == 1
    out = capsys.readouterr().out
    assert "≠" in out
    assert "INSPECT nothing looks wrong, " in out
    differing = {line.name for line in lines_of(inspect_folder(tmp_path)) if line.differs}
    assert "rm_scores.sum() a row" in differing
    assert "container" not in differing, "that is what two trainers are"
    assert "trajectories" not in differing


def test_json_has_everything_and_the_exit_code(tmp_path, clean, capsys):
    assert inspected("--json", clean.directory) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["sides"], content["findings"], content["exit_code"]) == (["v1"], [], 0)
    assert len(content["facts"]) == len(inspect_capture(clean).facts)
    assert json.loads(as_json(inspect_folder(clean.directory))) == content
    assert exit_code(inspect_folder(clean.directory)) == 0
    assert inspected(tmp_path) == 2
    assert f"INSPECT COULD NOT RUN: {tmp_path} has neither manifest.json nor" in capsys.readouterr().err
