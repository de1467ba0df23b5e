"""``pytest --parity-config`` in a repository of its own, as a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

CONFIG = """
defaults:
  - tiny
  - _self_
data:
  train_batch_size: 4
  max_response_length: 8
actor_rollout_ref:
  rollout:
    n: 2
  actor:
    ppo_mini_batch_size: 2
trainer:
  total_training_steps: 1
  logger: [jsonl]
"""

VERDICT = """
    import parity_tests.run
    from parity_tests.verdict import FieldVerdict, Kind, Status, Verdict

    def run_parity(config, directory, steps):
        directory.mkdir(parents=True)
        same = [
            FieldVerdict(1, stage, "figures", Kind.SERIES, Status.EQUAL)
            for stage in ("rollout", "reward", "balance", "old_log_prob")
        ]
        wrong = [
            FieldVerdict(1, stage, field, Kind.COLUMN, Status.DIVERGED, key="a_0_0", token=3, left="1.0", right="2.0")
            for stage, field in (("advantage", "returns"), ("update_actor", "actor/loss"))
        ]
        return Verdict(("legacy", "v1"), (*same, *wrong), vacuous=("all advantages are zero",))

    parity_tests.run.run_parity = run_parity
"""


@pytest.fixture
def repository(tmp_path):
    """A folder with a config and a test, and pytest in it; its output and exit code."""
    (tmp_path / "my.yaml").write_text(CONFIG)
    (tmp_path / "test_own.py").write_text("import sys\n\ndef test_own():\n    assert 'torch' not in sys.modules\n")

    def run(*arguments: str, conftest: str = "") -> tuple[str, int]:
        (tmp_path / "conftest.py").write_text(textwrap.dedent(conftest))
        command = [sys.executable, "-m", "pytest", "-p", "parity_tests.plugin", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr, done.returncode

    return run


def test_without_the_option_it_costs_nothing(repository):
    """The test inside asks whether torch was imported."""
    output, code = repository("-q")
    assert code == 0, output
    assert "1 passed" in output


def test_a_file_that_is_not_there_is_told(repository):
    output, code = repository("--parity-config", "other.yaml")
    assert "--parity-config=other.yaml: there is no such file" in output
    assert code == pytest.ExitCode.USAGE_ERROR


def test_each_stage_is_a_test_and_the_first_divergence_the_message(repository):
    output, code = repository("my.yaml", "--parity-config", "my.yaml", "-v", "-rf", conftest=VERDICT)
    lines = output.splitlines()
    results = [line.split("%")[0].split("[")[0].strip() for line in lines if line.startswith("my.yaml::")]
    assert results == [
        "my.yaml::step 1 rollout PASSED",
        "my.yaml::step 1 reward PASSED",
        "my.yaml::step 1 balance PASSED",
        "my.yaml::step 1 old_log_prob PASSED",
        "my.yaml::step 1 advantage FAILED",
        "my.yaml::step 1 update_actor FAILED",
        "my.yaml::weights PASSED",
        "my.yaml::proves something FAILED",
    ]
    first = "step 1 stage advantage field returns key a_0_0 token 3: legacy 1.0, v1 2.0"
    assert f"PARITY DIVERGED at {first}" in lines
    assert f"first: {first}" in lines
    assert "PARITY VACUOUS: all advantages are zero" in lines
    assert "Traceback" not in output
    assert code == pytest.ExitCode.TESTS_FAILED


def test_a_config_that_is_refused_is_an_error_of_collection(repository):
    output, code = repository("--parity-config", "my.yaml", "--parity-override", "trainer.n_gpus_per_node=3")
    assert "does not divide by trainer.nnodes * trainer.n_gpus_per_node = 3" in output
    assert "Traceback" not in output
    assert code == pytest.ExitCode.INTERRUPTED


@pytest.mark.evidence
def test_a_real_run(repository):
    output, code = repository("my.yaml", "--parity-config", "my.yaml", "-q")
    assert "8 passed" in output, output
    assert code == 0
