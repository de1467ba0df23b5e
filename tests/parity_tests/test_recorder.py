"""The recorder on our ``DataProto``; ``tests/oracle/test_recorder_against_verl.py`` has it in verl's own process."""

import ast
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from compat.protocol import DataProto
from parity_tests.capture import Capture
from parity_tests.importing import SavedStage, import_stages
from parity_tests.recorder import verl_recorder
from parity_tests.recorder.verl_recorder import Recorder
from runtime.arrays import object_array
from runtime.errors import CaptureError
from runtime.fields import ALIASES, LEVELS
from verlift.main import main

SOURCE = Path(verl_recorder.__file__).read_text()


def batch(uids=("a", "b", "a")):
    """Prompts of 1 and responses of 2 tokens, the second one of row 0 padding."""
    exists = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1]])
    tokens = torch.arange(9).view(3, 3)
    tensors = {"prompts": tokens[:, :1], "responses": tokens[:, 1:], "attention_mask": exists}
    return DataProto.from_dict(tensors=tensors, non_tensors={"uid": object_array(list(uids))})


def closed(recorder):
    recorder.close({"trainer": {"use_v1": False}})
    return Capture.open(recorder.root)


def test_it_needs_nothing_of_ours():
    tree = ast.parse(SOURCE)
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    third_party = {name.split(".")[0] for name in imported} - sys.stdlib_module_names
    assert third_party == {"torch", "numpy", "safetensors"}


def test_it_knows_our_fields_and_their_old_names():
    ours = {name: level.value for name, level in LEVELS.items() if name != "selected"}  # made inside our update
    assert ours == verl_recorder.LEVELS
    assert ALIASES.items() <= verl_recorder.OLD_NAMES.items()


def test_rows_are_named_and_ordered_by_their_first_sight(tmp_path):
    recorder, rows = Recorder(tmp_path / "run"), batch()
    recorder.stage(1, "rollout", rows)
    rows.reorder(torch.tensor([2, 1, 0]))
    recorder.stage(1, "balance", rows)
    rows.batch["entropys"] = torch.tensor([[4.0, 5.0], [2.0, 3.0], [1.0, 9.0]])
    recorder.stage(1, "old_log_prob", rows)
    capture = closed(recorder)
    assert {tuple(map(str, stage.keys)) for stage in capture.stages()} == {("a_0_0", "a_1_0", "b_0_0")}
    assert capture.stage(1, "balance").series["row_order"] == (1.0, 2.0, 0.0)
    old = capture.stage(1, "old_log_prob")
    assert old.read("entropy").tolist() == [1, 4, 5, 2, 3], "the padding is gone"
    assert old.responses.lengths.tolist() == [1, 2, 2]


def test_a_second_step_names_its_own_prompts(tmp_path):
    recorder = Recorder(tmp_path / "run")
    for step, uids in ((1, ("a", "b", "a")), (2, ("b", "c", "c"))):
        recorder.stage(step, "rollout", batch(uids))
    keys = closed(recorder).stage(2, "rollout").keys
    assert [str(key) for key in keys] == ["b_0_0", "c_0_0", "c_1_0"]


def test_what_cannot_be_recorded_is_refused(tmp_path):
    recorder, rows = Recorder(tmp_path / "run"), batch()
    recorder.stage(1, "rollout", rows)
    with pytest.raises(FileExistsError, match=r"rollout.json: stage 'rollout' of step 1 is recorded twice"):
        recorder.stage(1, "rollout", rows)
    with pytest.raises(FileExistsError):
        Recorder(tmp_path / "run")
    rows.non_tensor_batch["tool"] = np.array([object()] * 3, dtype=object)
    with pytest.raises(TypeError, match="tool holds a object; take it out of the batch"):
        recorder.stage(2, "rollout", rows)


def test_a_run_that_was_not_closed_is_no_capture(tmp_path):
    Recorder(tmp_path / "run").stage(1, "rollout", batch())
    with pytest.raises(CaptureError, match=r"run has no manifest.json"):
        Capture.open(tmp_path / "run")


def test_the_command_gives_the_file(tmp_path, capsys):
    for out in ([], ["--out", str(tmp_path / "recorder.py")]):
        with pytest.raises(SystemExit) as ended:
            main(["parity", "recorder", *out])
        assert ended.value.code == 0
    assert capsys.readouterr().out == f"{SOURCE}wrote {tmp_path / 'recorder.py'}\n"
    assert (tmp_path / "recorder.py").read_text() == SOURCE


def imported(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["parity", "import", *map(str, arguments)])
    return ended.value.code


def test_the_command_imports_files(tmp_path, capsys):
    rows, files = batch(), [tmp_path / "1.dp", tmp_path / "2.dp"]
    rows.save_to_disk(files[0])
    rows.batch["values"] = torch.ones(3, 2)
    rows.save_to_disk(files[1])
    stages = ("--stage", "rollout", "--stage", "values")
    assert imported(*files, *stages, "--step", 7, "--out", tmp_path / "run") == 0
    assert capsys.readouterr().out.splitlines()[1] == "step 7 values: 3 rows, values"
    assert Capture.open(tmp_path / "run").stage(7, "values").read("values").tolist() == [1.0] * 5
    assert imported(*files, *stages, "--out", tmp_path / "run") == 2
    assert "run is there already" in capsys.readouterr().err
    assert imported(*files, "--stage", "rollout", "--out", tmp_path / "other") == 2
    assert "2 files, 1 --stage and 2 --step" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


class Harm:
    def __reduce__(self):
        return (print, ("run by a pickle",))


def test_files_that_are_no_batch_of_trajectories_are_named(tmp_path, capsys):
    files = {name: tmp_path / name for name in ("missing", "text", "harm", "bare")}
    files["text"].write_text("not a batch")
    files["harm"].write_bytes(pickle.dumps(Harm()))
    DataProto.from_dict(tensors={"values": torch.ones(2, 2)}).save_to_disk(files["bare"])
    for name, reason in (
        ("missing", "cannot be read"),
        ("text", "cannot be read as a DataProto"),
        ("harm", "is not loaded: it asks for builtins.print"),
        ("bare", "has no attention_mask, responses, uid: it is no batch of trajectories"),
    ):
        assert imported(files[name], "--stage", "rollout", "--out", tmp_path / "run") == 2
        told = capsys.readouterr()
        assert f"PARITY COULD NOT RUN: {files[name]} {reason}" in told.err
        assert "run by a pickle" not in told.out
        assert not (tmp_path / "run").exists()
    with pytest.raises(CaptureError, match="text cannot be read"):
        import_stages([SavedStage(tmp_path / "gone" / "text", "rollout", 1)], tmp_path / "run")
