"""Whatever happens to a capture while it is written or afterwards: it is told by name, and never taken for whole."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from parity_tests.capture import Capture, CaptureHook, write_manifest
from parity_tests.compare import compare
from parity_tests.synthetic import Size, synthetic_capture
from runtime.errors import CaptureError
from verlift.main import main

SIZE = Size(rows=12, longest=9, sessions=3, prompt=5)
EXAMPLES = int(os.environ.get("DAMAGE_EXAMPLES", "60"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory, export_weights):
    """Two equal captures, weights included; tests put back what they change."""
    folder = tmp_path_factory.mktemp("captures")
    for name in ("legacy", "v1"):
        capture = synthetic_capture(folder / name, SIZE, use_v1=name == "v1")
        export_weights(capture, {"actor.layer": torch.ones(3, 2)})
    return folder / "legacy", folder / "v1"


@contextlib.contextmanager
def restored(file):
    """``file`` with its content as it was, whatever the block does to it."""
    content = file.read_bytes()
    try:
        yield content
    finally:
        file.write_bytes(content)


def compared(pair, report):
    """The exit code of ``verlift parity compare``."""
    with pytest.raises(SystemExit) as ended:
        main(["parity", "compare", *map(str, pair), "--report", str(report)])
    return ended.value.code


def names(folder):
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


NAMES = [
    "manifest.json",
    "step_0/initial.json",
    *(f"step_1/{stage}" for stage in ("advantage.json", "advantage.safetensors", "old_log_prob.json")),
    *(f"step_1/{stage}" for stage in ("old_log_prob.safetensors", "reward.json", "reward.safetensors")),
    *(f"step_1/{stage}" for stage in ("rollout.json", "rollout.safetensors", "update_actor.json")),
    "weights.safetensors",
]


def test_the_pair_is_equal_and_every_file_of_it_is_known(pair, tmp_path):
    assert compared(pair, tmp_path / "report.json") == 0
    assert names(pair[0]) == names(pair[1]) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_truncated_or_missing_file_is_named_with_exit_code_2(pair, tmp_path, capsys, name):
    file = pair[1] / name
    with restored(file) as content:
        for keep in (0, 1, 8, len(content) // 2, len(content) - 1):
            file.write_bytes(content[:keep])
            assert compared(pair, tmp_path / "report.json") == 2
            told = capsys.readouterr().err
            assert told.startswith("PARITY COULD NOT RUN:")
            assert str(file) in told
            assert "Traceback" not in told
        file.unlink()
        assert compared(pair, tmp_path / "report.json") == 2
        told = capsys.readouterr().err
        assert str(file) in told or f"{file.parent} has no {file.name}" in told
    assert not (tmp_path / "report.json").exists()


def test_weights_that_no_run_exported_are_refused(pair, tmp_path, capsys):
    other = synthetic_capture(tmp_path / "other", SIZE, use_v1=True)
    (other.directory / "weights.safetensors").write_bytes((pair[0] / "weights.safetensors").read_bytes())
    assert compared((pair[0], other.directory), tmp_path / "report.json") == 2
    assert f"{other.directory}/weights.safetensors does not match the sha256 of manifest" in capsys.readouterr().err


def test_weights_that_one_side_did_not_export_are_a_divergence(pair, tmp_path, capsys):
    other = synthetic_capture(tmp_path / "other", SIZE, use_v1=True)
    assert compared((pair[0], other.directory), tmp_path / "report.json") == 1
    assert "stage weights field export key - token -: legacy present, v1 missing" in capsys.readouterr().out


def test_another_config_is_told_and_decides_nothing(pair, tmp_path, capsys, export_weights):
    other = synthetic_capture(tmp_path / "other", Size(12, 9, sessions=3, prompt=5, steps=1), use_v1=True)
    export_weights(other, {"actor.layer": torch.ones(3, 2)})
    content = json.loads((other.directory / "manifest.json").read_text())
    content["config"]["algorithm"]["adv_estimator"] = "rloo"
    write_manifest(other.directory, *(content[name] for name in ("config", "versions", "seeds", "fingerprint")))
    assert compared((pair[0], other.directory), tmp_path / "report.json") == 0
    assert "['config']['algorithm']['adv_estimator'] differs: legacy 'grpo', v1 'rloo'" in capsys.readouterr().out


@contextlib.contextmanager
def files_of_at_most(size):
    """The system refuses to write more than ``size`` bytes to a file, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 100, 900, 1500, 2500])
def test_a_disk_that_is_full_ends_the_run_and_leaves_nothing_half_written(tmp_path, size):
    size_of_run = Size(rows=60, longest=90)
    with files_of_at_most(size), pytest.raises(CaptureError, match=r"could not write .*step_\d/\w+\.\w+: ") as told:
        synthetic_capture(tmp_path / "run", size_of_run, use_v1=True)
    assert "File too large" in str(told.value)
    for file in (tmp_path / "run").rglob("*.*"):
        assert not file.name.startswith("."), "a temporary file stayed"
        json.loads(file.read_text()) if file.suffix == ".json" else load_file(file)
    with pytest.raises(CaptureError, match=r"run has no manifest.json"):
        Capture.open(tmp_path / "run")


def test_a_report_that_cannot_be_written_is_no_verdict(pair, capsys):
    assert compared(pair, Path("/proc/verlift/report.json")) == 2
    assert "PARITY COULD NOT RUN: could not write /proc/verlift/report.json" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["/proc/verlift/run", "file/run"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(CaptureError, match=f"could not write .*{where}: "):
        CaptureHook(where)


@contextlib.contextmanager
def without_privileges():
    """Root may write everywhere, so that nobody does what the block does."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_folder_that_became_read_only_ends_the_run(records):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        hook = CaptureHook(Path(folder) / "run")
        hook(records[0, "initial"])
        (Path(folder) / "run").chmod(0o555)
        with without_privileges(), pytest.raises(CaptureError, match=r"could not write .*Permission denied"):
            hook(records[1, "rollout"])
        assert names(Path(folder) / "run") == ["step_0/initial.json"]


def test_a_capture_in_a_read_only_folder_is_compared(pair):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        copies = [shutil.copytree(side, Path(folder) / side.name) for side in pair]
        for place in (*copies, *(place for copy in copies for place in copy.rglob("*"))):
            place.chmod(0o555 if place.is_dir() else 0o444)
        with without_privileges():
            assert compare(*map(Capture.open, copies)).exit_code == 0


WRITER = """
import sys
from parity_tests import synthetic
from parity_tests.capture import CaptureHook
hook = CaptureHook(sys.argv[1])
for record in synthetic._records(synthetic.Size(rows=64, longest=3000, steps=10_000), 0, 0.0):
    hook(record)
    print(record.step, flush=True)
"""


def test_a_run_that_is_killed_is_no_capture(pair, tmp_path, capsys):
    run = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", WRITER, run], stdout=subprocess.PIPE, text=True) as writer:
        for line in writer.stdout:
            if int(line) == 3:
                writer.send_signal(signal.SIGKILL)
                break
        writer.wait(60)
    whole = [file for file in run.rglob("*.json") if not file.name.startswith(".")]
    assert len(whole) > 10
    for file in whole:
        json.loads(file.read_text())
    assert compared((pair[0], run), tmp_path / "report.json") == 2
    assert f"{run} has no manifest.json: it is no capture, or its run did not end" in capsys.readouterr().err
    assert not (tmp_path / "report.json").exists()


def meaning(file):
    """What is in a file, beside the spelling of it."""
    if file.suffix == ".json":
        return json.dumps(json.loads(file.read_bytes()), sort_keys=True)
    return {name: (str(t.dtype), t.shape, t.reshape(-1).tolist()) for name, t in load_file(file).items()}


damages = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 10**6), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.integers(0, 10**6), st.just(0)),
    st.tuples(st.just("drop"), st.integers(0, 10**6), st.integers(1, 9)),
    st.tuples(st.just("double"), st.integers(0, 10**6), st.integers(1, 9)),
)


def damaged(content, kind, place, amount):
    place %= len(content)
    if kind == "flip":
        return content[:place] + bytes([content[place] ^ amount]) + content[place + 1 :]
    rest = {"cut": b"", "drop": content[place + amount :], "double": content[max(0, place - amount) :]}
    return content[:place] + rest[kind]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(NAMES), header=st.booleans(), damage=damages)
def test_random_damage_is_an_error_that_names_the_file_or_a_divergence(pair, name, header, damage):
    """Never a pass, unless what the file says is the same in other words; never an error of another kind."""
    file = pair[1] / name
    before = meaning(file)
    with restored(file) as content:
        kind, place, amount = damage
        # Half of the damage goes to the beginning: of a large file most places are values.
        file.write_bytes(damaged(content, kind, place % 600 if header else place, amount))
        with contextlib.suppress(_Named):
            with _naming(file):
                verdict = compare(*map(Capture.open, pair))
            if verdict.exit_code == 0:
                assert meaning(file) == before


class _Named(Exception):
    """A CaptureError named the file that was damaged, or the one it belongs to."""


@contextlib.contextmanager
def _naming(file):
    try:
        yield
    except CaptureError as error:
        if str(file.with_suffix("")) not in str(error):
            raise
        raise _Named from error
