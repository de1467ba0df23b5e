"""`verlift parity record`, `check`, `calibrate` and `bisect` as commands: what they refuse, and real runs of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parity_tests.golden import Baseline
from parity_tests.tolerances import read_tolerances
from verlift.parity import app

ROOT = Path(__file__).parents[2]
RECORDED = ["--config-path", str(ROOT / "examples/recorded_sessions"), "--config-name", "recorded"]
FILES = [f"data.train_files={ROOT / 'examples/recorded_sessions/sessions.jsonl'}", "trainer.logger=[jsonl]"]


def parity(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "verlift.main", "parity", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["record"], "either --out DIR"),
        (["record", "--out", "a", "--update", "b"], "either --out DIR"),
        (["record", "--update", "b", "data.seed=1"], "--update runs the config that the baseline names"),
        (["record", "--update", "nothere", "--allow-dirty"], "nothere has no baseline.json"),
        (["record", "--out", "a"], "no git repository"),
        (["check", "nothere"], "nothere has no baseline.json"),
        (["calibrate", "--trainer", "both"], "the run of one trainer"),
        (["bisect"], "either --left and --right"),
        (["bisect", "--left", "tiny"], "either --left and --right"),
        (["bisect", "--git", "a", "b", "--left", "x", "--right", "y"], "either --left and --right"),
        (["bisect", "--git", "a", "b"], "git rev-parse"),
    ],
)
def test_what_cannot_run_says_why_and_exits_with_2(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


@pytest.mark.evidence
def test_record_check_and_update_as_commands(tmp_path):
    """Ends as documented: 0 for equal numbers, 1 for others, and an update says what it changes."""
    place = tmp_path / "baseline"
    recorded = parity("record", *RECORDED, "--out", str(place), "--allow-dirty", *FILES, cwd=ROOT)
    assert recorded.returncode == 0, recorded.stderr
    checked = parity("check", str(place), "--out", str(tmp_path / "right"), cwd=ROOT)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.splitlines()[-1] == "PARITY PASS"
    assert (tmp_path / "right" / "report-v1.html").exists()

    config = tmp_path / "config"
    shutil.copytree(ROOT / "examples" / "recorded_sessions", config)
    moved = parity("record", *RECORDED, "--config-path", str(config), "--out", str(tmp_path / "b"), "--allow-dirty",
                   *FILES, cwd=ROOT)  # fmt: skip
    assert moved.returncode == 0, moved.stderr
    text = (config / "recorded.yaml").read_text()
    (config / "recorded.yaml").write_text(text.replace("lr: 1e-4", "lr: 1e-3"))
    checked = parity("check", str(tmp_path / "b"), "--out", str(tmp_path / "wrong"), cwd=ROOT)
    assert checked.returncode == 1
    assert "['lr']: baseline 0.0001, now 0.001" in checked.stdout
    assert checked.stdout.splitlines()[-1].startswith("PARITY DIVERGED at step 1 stage update_actor field ")
    updated = parity("record", "--update", str(tmp_path / "b"), "--allow-dirty", cwd=ROOT)
    assert updated.returncode == 0, updated.stderr
    assert "config: 1 changed" in updated.stdout
    assert Baseline.open(tmp_path / "b").captures["v1"].config["actor_rollout_ref"]["actor"]["optim"]["lr"] == 1e-3


@pytest.mark.evidence
def test_calibrate_as_a_command(tmp_path):
    out = tmp_path / "tolerances.yaml"
    done = parity("calibrate", *RECORDED, "--repeats", "1", "--out", str(out), *FILES, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    tolerances = read_tolerances(out)
    assert {"old_log_prob", "update_actor", "weights"} <= tolerances.keys()
    assert all(tolerance.max_abs < 1e-2 for tolerance in tolerances.values())


@pytest.mark.evidence
def test_bisect_finds_the_key_between_two_configs(tmp_path):
    done = parity(
        "bisect", *RECORDED, "--steps", "1", "--out", str(tmp_path / "runs"), *FILES,
        "--left", "", "--right", "algorithm.adv_estimator=rloo trainer.save_freq=7 data.seed=3", cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == (
        "BISECT FOUND algorithm.adv_estimator ('grpo' -> 'rloo'): changes step 1 stage advantage"
    )


@pytest.mark.evidence
def test_bisect_finds_the_commit_of_this_project_that_halved_its_advantages(tmp_path):
    """Three commits on a clone of this one: the second changes nothing, the third a number of both trainers."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)

    def commit(message: str) -> None:
        author = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", clone, *author, "commit", "--quiet", "-am", message], check=True)

    with (clone / "README.md").open("a") as stream:
        stream.write("\n")
    commit("words")
    code = clone / "runtime" / "advantage.py"
    code.write_text(
        code.read_text().replace('"advantages": outputs.advantages,', '"advantages": outputs.advantages / 2,')
    )
    commit("half of it")
    done = parity(
        "bisect", *RECORDED, "--steps", "1", "--git", "HEAD~2", "HEAD", "--out", str(tmp_path / "runs"), *FILES,
        cwd=clone,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1].endswith("(half of it): changes step 1 stage advantage")
