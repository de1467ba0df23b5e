"""The command line: arguments reach the config, and an error of the user's is one message and exit code 2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray.exceptions import RayTaskError

from runtime.errors import RewardError
from verlift.main import main, report, root_cause

HOUSE = Path(__file__).resolve().parents[2]


def run(capfd, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    out, err = capfd.readouterr()
    return int(caught.value.code or 0), out, err


def test_help_names_the_commands(capfd):
    code, out, _ = run(capfd, "--help")
    assert code == 0
    assert all(command in out for command in ("train", "parity", "doctor"))


def test_help_imports_nothing_heavy():
    script = (
        "import sys; from verlift.main import build_app; build_app();"
        "print([name for name in ('torch', 'ray', 'transformers', 'hydra') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=HOUSE, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("debug_place", [None, "first", "last"])
def test_an_unknown_key_is_one_message(capfd, debug_place, monkeypatch):
    monkeypatch.setenv("VERLIFT_DEBUG", "0")
    arguments = ["train", "--config-name", "tiny", "trainer.use_v1=false", "data.train_batch_sze=4"]
    if debug_place:
        arguments.insert(0 if debug_place == "first" else len(arguments), "--debug")
    code, _, err = run(capfd, *arguments)
    assert code == 2
    assert "error: unknown config key 'data.train_batch_sze'" in err
    assert "'data.train_batch_size'" in err
    assert ("Traceback" in err) is bool(debug_place)


def test_a_deletion_and_additions_are_arguments(capfd):
    code, _, err = run(capfd, "train", "~nope", "+mine=1", "--config-name=tiny")
    assert code == 2
    assert "no config key 'nope' to delete" in err


def test_a_config_of_the_users(capfd, tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults: [tiny, _self_]\ntrainer: {logger: [swanlab]}\n")
    code, _, err = run(capfd, "train", "--config-path", str(tmp_path), "--config-name", "mine")
    assert code == 2
    assert "'swanlab'" in err


def test_an_unknown_option_is_a_usage_error(capfd):
    code, _, err = run(capfd, "train", "--no-such-option")
    assert code == 2
    assert "--no-such-option" in err


def test_the_error_of_a_ray_worker_is_unwrapped(capfd):
    cause = RewardError("row 3: the reward function returned NaN")
    wrapped = RayTaskError("score", "Traceback ...", cause).as_instanceof_cause()
    assert root_cause(wrapped) is cause
    assert report(wrapped) == 2
    err = capfd.readouterr().err
    assert "error: row 3: the reward function returned NaN (RewardError)" in err
    assert "Traceback" not in err


def test_an_error_of_ours_keeps_its_traceback(capfd):
    assert report(KeyError("x")) == 1
    assert "KeyError: 'x'" in capfd.readouterr().err


def test_a_module_that_hides_ours_is_named(tmp_path):
    (tmp_path / "runtime.py").touch()
    done = subprocess.run(
        [sys.executable, "-m", "verlift.main", "train", "--config-name", "tiny", "a=1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{HOUSE}", "COLUMNS": "300"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert str(tmp_path / "runtime.py") in done.stderr
    assert "rename it" in done.stderr
    assert "Traceback" not in done.stderr
