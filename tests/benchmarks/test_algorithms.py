"""The benchmark runs, at a size where its times mean nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.oracle


def benchmark(*options):
    command = [sys.executable, "-m", "benchmarks", "--repeats", "1", "--threads", "1", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module", autouse=True)
def oracle():
    if not (ROOT / ".oracle" / "verl").is_dir():
        pytest.skip("verl 0.9.1 is not in .oracle/: run tests/oracle/install.sh")


def test_every_algorithm_agrees_with_verl_and_is_measured(tmp_path):
    figures = tmp_path / "figures.json"
    done = benchmark("--case", "64", "256", "0.3", "--growth", "4", "64", "--json", str(figures))
    assert done.returncode == 0, done.stderr
    (of_cpu, *_) = map(json.loads, figures.read_text().splitlines())
    assert [row["name"] for row in of_cpu["results"]] == ["grpo", "gae", "rloo", "reinforce_plus_plus", "vanilla"]
    for row in of_cpu["results"]:
        assert row["our_ms"] > 0
        assert row["verl_ms"] > 0
    assert set(of_cpu["growth"]) == {"grpo", "gae", "rloo", "reinforce_plus_plus"}


def test_a_case_that_does_not_fit_is_named():
    done = benchmark("--case", "400000000", "16384", "0.9", "--only", "gae", "--growth", "4", "8")
    assert done.returncode == 0, done.stderr
    assert "gae on Case(rows=400000000, width=16384, fill=0.9) is left out" in " ".join(done.stdout.split())
