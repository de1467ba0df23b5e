"""Baselines on synthetic captures: what is kept, what is found later, and what is never taken for a whole one."""

import dataclasses
import json
import math

import pytest
import torch

from parity_tests import golden
from parity_tests.capture import write_manifest
from parity_tests.storage import WEIGHTS
from parity_tests.tolerances import TABLE
from parity_tests.verdict import Status
from runtime.errors import CaptureError


@pytest.fixture
def sides(save, records):
    return save("legacy", records), save("v1", records)


@pytest.fixture
def baseline(sides, tmp_path):
    return golden.record(sides, tmp_path / "baseline")


def refingerprint(baseline, **changes):
    """The baseline as another machine would have recorded it."""
    for capture in baseline.captures.values():
        made = capture.manifest
        fingerprint = {**made["fingerprint"], **changes}
        write_manifest(capture.directory, capture.config, made["versions"], made["seeds"], fingerprint)
    files = {name: golden.file_digest(baseline.directory / name) for name in baseline.manifest["files"]}
    (baseline.directory / golden.BASELINE).write_text(json.dumps({**baseline.manifest, "files": files}))
    return golden.Baseline.open(baseline.directory)


def test_a_run_of_equal_numbers_passes_for_each_trainer(baseline, sides):
    for side in sides:
        verdict = golden.check(baseline, side)
        assert (verdict.line, verdict.exit_code, verdict.labels) == ("PARITY PASS", 0, ("baseline", "now"))
        assert {field.status for field in verdict.fields} == {Status.EQUAL}
        assert verdict.metadata == {}


def test_a_change_of_both_trainers_alike_is_found_at_its_token(baseline, save, synthetic, edit, records):
    """What no comparison of the two trainers can show."""
    batch = records[2, "advantage"].batch
    changed = batch["advantages"].clone()
    changed[-1] = torch.nextafter(changed[-1], torch.tensor(9.0))
    faulty = synthetic()
    edit(faulty, (2, "advantage"), advantages=changed)
    for name in ("legacy", "v1"):
        first = golden.check(baseline, save(f"later/{name}", faulty, {**baseline.captures[name].config})).first
        last = int(batch.responses.lengths[-1]) - 1
        assert (first.step, first.stage, first.field) == (2, "advantage", "advantages")
        assert (first.key, first.token, first.max_ulp) == (str(batch.keys[-1]), last, 1)


def test_changes_of_config_and_environment_are_told_apart_from_numbers(baseline, save, records, config):
    changed = config(True)
    changed["algorithm"]["adv_estimator"] = "rloo"
    baseline = refingerprint(baseline, cpu_isa="OTHER")
    verdict = golden.check(baseline, save("later", records, changed))
    assert verdict.exit_code == 0
    assert set(verdict.metadata) == {"['config']['algorithm']['adv_estimator']", "['fingerprint']['cpu_isa']"}
    assert golden.config_hash(changed) != baseline.manifest["config_hash"]
    assert golden.config_hash(config(False)) == baseline.manifest["config_hash"]


def drifted(faulty, edit, records, by):
    column = records[1, "old_log_prob"].batch["old_log_probs"]
    edit(faulty, (1, "old_log_prob"), old_log_probs=column + by)


def test_models_are_judged_by_bits_only_where_the_fingerprint_matches(baseline, save, synthetic, edit, records):
    faulty = synthetic()
    drifted(faulty, edit, records, by=TABLE["old_log_prob"]["float32"].mean_abs / 2)
    now = save("v1-now", faulty, baseline.captures["v1"].config)
    assert golden.check(baseline, now).first.field == "old_log_probs"
    elsewhere = golden.check(refingerprint(baseline, cpu_isa="OTHER"), now)
    assert elsewhere.line == "PARITY PASS"
    assert next(field.status for field in elsewhere.fields if field.field == "old_log_probs") is Status.WITHIN
    assert "the fingerprints differ" in elsewhere.notes[0]


def test_a_small_systematic_drift_fails_by_its_mean(baseline, save, synthetic, edit, records):
    """Each value is well within the largest difference, and all of them moved the same way."""
    allowed = TABLE["old_log_prob"]["float32"]
    drift = math.sqrt(allowed.max_abs * allowed.mean_abs)
    assert allowed.mean_abs < drift < allowed.max_abs
    faulty = synthetic()
    drifted(faulty, edit, records, by=drift)
    now = save("v1-now", faulty, baseline.captures["v1"].config)
    first = golden.check(refingerprint(baseline, cpu_isa="OTHER"), now).first
    assert (first.stage, first.field) == ("old_log_prob", "old_log_probs")
    assert first.max_abs < allowed.max_abs


@pytest.mark.parametrize("stage", ["rollout", "reward", "advantage"])
def test_algorithm_stages_are_judged_by_bits_on_every_machine(baseline, save, synthetic, edit, records, stage):
    name = {"rollout": "num_turns", "reward": "token_level_scores", "advantage": "returns"}[stage]
    column = records[1, stage].batch[name].clone()
    column[0] = torch.nextafter(column[0], torch.tensor(9.0)) if column.is_floating_point() else column[0] + 1
    faulty = synthetic()
    edit(faulty, (1, stage), **{name: column})
    now = save("v1-now", faulty, baseline.captures["v1"].config)
    assert golden.check(refingerprint(baseline, threads="64"), now).first.field == name


def test_of_large_columns_and_objects_the_sha256_is_kept_and_still_found(save, edit, records, tmp_path):
    long = [{"text": "x" * 1000}] * len(records[1, "rollout"].batch)
    for step in (1, 2):
        record = records[step, "rollout"]
        records[step, "rollout"] = dataclasses.replace(
            record, batch=dataclasses.replace(record.batch, objects={"raw_prompt": long})
        )
    capture = save("v1", records)
    baseline = golden.record([capture], tmp_path / "baseline", kept_bytes=0)
    stage = baseline.captures["v1"].stage(1, "rollout")
    assert not list(baseline.directory.rglob("step_*/*.safetensors"))
    assert set(stage.objects["raw_prompt"][0]) == {"sha256"}
    with pytest.raises(CaptureError, match="only the sha256"):
        stage.read("responses")
    assert golden.check(baseline, capture).exit_code == 0

    edit(records, (1, "rollout"), responses=records[1, "rollout"].batch["responses"] + 1)
    first = golden.check(baseline, save("changed", records, baseline.captures["v1"].config)).first
    assert (first.field, first.left[:7]) == ("responses", "sha256:")


def test_weights_are_kept_as_samples_and_a_root_mean_square(save, records, tmp_path, export_weights):
    weights = {"lm_head": torch.randn(50, 20, generator=torch.Generator().manual_seed(0)), "bias": torch.ones(3)}
    recorded = save("v1", records)
    changed = save("changed", records, recorded.config)
    recorded = export_weights(recorded, weights)
    weights["lm_head"][1, 7] += 1.0  # between two samples
    changed = export_weights(changed, weights)
    baseline = golden.record([recorded], tmp_path / "baseline")
    assert (baseline.directory / "v1" / WEIGHTS).stat().st_size < 1000
    assert golden.check(baseline, recorded).exit_code == 0
    first = golden.check(baseline, changed).first
    assert (first.stage, first.field) == ("weights", "lm_head [rms]")


def test_the_folder_of_the_recording_machine_is_not_kept(sides, baseline):
    assert (
        sides[0].config["trainer"]["default_local_dir"]
        not in baseline.directory.joinpath("legacy/manifest.json").read_text()
    )


@pytest.mark.parametrize("name", [golden.BASELINE, "v1/manifest.json", "v1/step_1/advantage.json"])
def test_what_is_missing_or_changed_is_refused_by_name(baseline, sides, name):
    path = baseline.directory / name
    content = path.read_text()
    for fault in (path.unlink, lambda: path.write_text(content[: len(content) // 2])):
        fault()
        with pytest.raises(CaptureError, match=name.split("/")[-1]):
            golden.check(golden.Baseline.open(baseline.directory), sides[1])


@pytest.mark.parametrize("killed_at", ["advantage.json", "manifest.json", golden.BASELINE])
def test_a_killed_update_is_never_taken_for_a_whole_baseline(baseline, sides, monkeypatch, killed_at):
    write = golden.write_json

    def killed(path, content):
        if path.name == killed_at:
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(golden, "write_json", killed)
    monkeypatch.setattr("parity_tests.capture.write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        golden.record(sides[:1], baseline.directory, update=True)
    with pytest.raises(CaptureError, match=r"missing|update did not end|cannot be read"):
        golden.Baseline.open(baseline.directory)


def test_an_update_replaces_all_of_a_baseline(baseline, sides):
    updated = golden.record(sides[1:], baseline.directory, update=True)
    assert list(updated.captures) == ["v1"]
    assert not (baseline.directory / "legacy").exists()
    with pytest.raises(CaptureError, match="record a baseline of both"):
        golden.check(updated, sides[0])


def test_a_folder_with_content_is_never_written_into(baseline, sides, tmp_path):
    with pytest.raises(CaptureError, match="--update"):
        golden.record(sides, baseline.directory)
    with pytest.raises(CaptureError, match="give a new folder"):
        golden.record(sides, tmp_path)  # it holds the captures
    with pytest.raises(CaptureError, match=r"has no baseline\.json to update"):
        golden.record(sides, tmp_path, update=True)


def test_captures_of_two_configs_or_of_one_trainer_twice_are_refused(sides, save, records, config, tmp_path):
    with pytest.raises(CaptureError, match="each trainer once"):
        golden.record([sides[0], sides[0]], tmp_path / "twice")
    other = save("other", records, config(True, "rloo"))
    with pytest.raises(CaptureError, match="2 configs"):
        golden.record([sides[0], other], tmp_path / "two")
