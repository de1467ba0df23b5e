import dataclasses
import json
import math
import pickle
from datetime import datetime
from decimal import Decimal

import numpy as np
import pytest
import torch

from parity_tests.capture import Capture, CaptureHook, write_manifest
from runtime.errors import CaptureError
from runtime.identity import TrajectoryKey
from runtime.trainer.hooks import StageRecord
from runtime.trajectories import TrajectoryBatch
from shared_algos.segments import Segments


def test_everything_a_record_holds_is_read_back_exactly(save, records):
    capture = save("legacy", records)
    for (step, name), record in records.items():
        stage = capture.stage(step, name)
        assert stage.digests == record.digests
        assert stage.series == record.series
        if record.batch is None:
            assert stage.keys == ()
            continue
        assert stage.keys == record.batch.keys
        assert stage.prompts.offsets.equal(record.batch.prompts.offsets)
        assert stage.responses.offsets.equal(record.batch.responses.offsets)
        assert set(stage.columns) == set(record.batch.columns)
        for column, values in record.batch.columns.items():
            assert stage.read(column).equal(values)
            assert stage.read(column).dtype == values.dtype
        assert stage.objects == {name: values.tolist() for name, values in record.batch.objects.items()}


def test_stages_come_in_the_order_of_the_trainers_whatever_the_order_of_writing(save, records):
    capture = save("legacy", dict(reversed(records.items())))
    assert capture.index == {
        0: ("initial",),
        1: ("rollout", "reward", "old_log_prob", "advantage", "update_actor"),
        2: ("rollout", "reward", "old_log_prob", "advantage", "update_actor"),
    }
    assert [(stage.step, stage.stage) for stage in capture.stages()] == list(records)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.uint8, torch.bool])
def test_columns_of_any_dtype_and_empty_rows(save, dtype):
    values = torch.tensor([0, 1, 1, 0, 1]).to(dtype)
    keys = (TrajectoryKey("a", 0, 0), TrajectoryKey("a", 1, 0), TrajectoryKey("b_c", 0, 2))
    batch = TrajectoryBatch(
        keys, Segments.from_lengths([0, 0, 0]), Segments.from_lengths([2, 0, 3]), {"values": values}
    )
    stage = save("legacy", {0: StageRecord(1, "values", batch)}).stage(1, "values")
    assert stage.keys == keys
    assert stage.read("values").equal(values)
    assert stage.read("values").dtype == dtype


def test_columns_of_one_storage_are_kept_apart(save):
    """The same tensor twice, and views of one: slices of a fetched buffer, every second value."""
    whole = torch.arange(10.0)
    columns = {"values": whole[:5], "returns": whole[:5], "advantages": whole[5:], "old_log_probs": whole[::2]}
    rows = Segments.from_lengths([2, 3])
    batch = TrajectoryBatch((TrajectoryKey("a", 0, 0), TrajectoryKey("a", 1, 0)), rows, rows, columns)
    stage = save("legacy", {0: StageRecord(1, "values", batch)}).stage(1, "values")
    for name, values in columns.items():
        assert stage.read(name).equal(values), name


def test_series_keep_every_float64(save):
    values = (0.1 + 0.2, -0.0, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, math.nan)
    stage = save("legacy", {0: StageRecord(1, "update_actor", series={"loss": values})}).stage(1, "update_actor")
    assert np.array(stage.series["loss"]).tobytes() == np.array(values).tobytes()


def test_the_files_are_strict_json_and_safetensors_and_nothing_else(save, records):
    def refuse(literal):
        raise AssertionError(f"{literal} is not JSON")

    capture = save("legacy", records | {"nan": StageRecord(3, "update_actor", series={"loss": (math.nan,)})})
    for path in capture.directory.rglob("*"):
        if path.is_file():
            assert path.suffix in (".json", ".safetensors")
        if path.suffix == ".json":
            json.loads(path.read_text(), parse_constant=refuse)


def test_the_hook_travels_to_workers(tmp_path, records):
    hook = CaptureHook(tmp_path / "run")
    hook(records[0, "initial"])
    pickle.loads(pickle.dumps(hook))(records[1, "rollout"])
    write_manifest(tmp_path / "run", {}, {}, {}, {})
    assert Capture.open(tmp_path / "run").index == {0: ("initial",), 1: ("rollout",)}


def test_a_capture_is_never_written_over_another(tmp_path, save, records):
    save("legacy", records)
    with pytest.raises(CaptureError, match="legacy is not empty"):
        CaptureHook(tmp_path / "legacy")


def test_a_stage_that_is_recorded_twice_is_refused(tmp_path, records):
    hook = CaptureHook(tmp_path / "run")
    hook(records[1, "reward"])
    with pytest.raises(CaptureError, match=r"step_1/reward.json is already there"):
        hook(records[1, "reward"])


def test_a_run_that_did_not_end_is_no_capture(tmp_path, records):
    CaptureHook(tmp_path / "run")(records[1, "rollout"])
    with pytest.raises(CaptureError, match=r"run has no manifest.json"):
        Capture.open(tmp_path / "run")


def test_objects_of_parquet_columns_and_of_recipes(save, records):
    """Numpy values come from pandas, dates and decimals from parquet, tuples from recipes."""
    row = {
        "array": np.array([[1, 2], [3, 4]]),
        "scalar": np.float32(0.5),
        "ragged": np.array([np.array([1]), np.array(["a", None], dtype=object)], dtype=object),
        "made": datetime(2026, 1, 2, 3, 4, 5, 6),
        "price": Decimal("1.10"),
        "pair": (1, math.inf),
        "none": None,
    }
    batch = records[1, "rollout"].batch
    objects = {"extra_info": np.array([row] * len(batch), dtype=object)}
    capture = save("legacy", {0: StageRecord(1, "rollout", dataclasses.replace(batch, objects=objects))})
    assert capture.stage(1, "rollout").objects["extra_info"][0] == {
        "array": [[1, 2], [3, 4]],
        "scalar": 0.5,
        "ragged": [[1], ["a", None]],
        "made": {"datetime": "2026-01-02 03:04:05.000006"},
        "price": {"Decimal": "1.10"},
        "pair": [1, {"float": "inf"}],
        "none": None,
    }


def test_an_object_without_an_exact_plain_form_is_refused_by_name(tmp_path, records):
    batch = records[1, "rollout"].batch
    odd = np.array([object()] * len(batch), dtype=object)
    record = StageRecord(1, "rollout", dataclasses.replace(batch, objects={"tool": odd}))
    with pytest.raises(CaptureError, match="object field 'tool' holds a object"):
        CaptureHook(tmp_path / "run")(record)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_column_file_is_named(save, records, keep):
    capture = save("legacy", records)
    file = capture.directory / "step_2" / "advantage.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CaptureError, match=r"step_2/advantage.safetensors cannot be read"):
        capture.stage(2, "advantage").read("advantages")


def test_a_truncated_stage_file_is_named(save, records):
    capture = save("legacy", records)
    file = capture.directory / "step_2" / "advantage.json"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(CaptureError, match=r"step_2/advantage.json cannot be read"):
        capture.stage(2, "advantage")


def test_a_changed_stage_file_is_named(save, records):
    capture = save("legacy", records)
    file = capture.directory / "step_1" / "update_actor.json"
    content = json.loads(file.read_text())
    content["series"]["actor/pg_loss"][0] = "0.5"
    file.write_text(json.dumps(content))
    with pytest.raises(CaptureError, match=r"step_1/update_actor.json does not match the sha256 of manifest.json"):
        capture.stage(1, "update_actor")


def test_one_flipped_bit_of_a_column_is_found(save, records):
    capture = save("legacy", records)
    file = capture.directory / "step_1" / "reward.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    stage = capture.stage(1, "reward")
    with pytest.raises(CaptureError, match=r"reward.safetensors: column '\w+' does not match the sha256"):
        [stage.read(name) for name in stage.columns]


@pytest.mark.parametrize("name", ["rollout.safetensors", "rollout.json"])
def test_a_missing_file_is_named(save, records, name):
    capture = save("legacy", records)
    (capture.directory / "step_1" / name).unlink()
    with pytest.raises(CaptureError, match=f"step_1/{name}"):
        capture.stage(1, "rollout").read("responses")


def test_a_full_disk_leaves_no_half_written_stage(tmp_path, records, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    hook = CaptureHook(tmp_path / "run")
    monkeypatch.setattr("parity_tests.capture.save_file", full)
    with pytest.raises(CaptureError, match=r"could not write .*rollout.safetensors: .*No space left"):
        hook(records[1, "rollout"])
    assert [path for path in (tmp_path / "run").rglob("*") if path.is_file()] == []
