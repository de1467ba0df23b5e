"""``verlift parity matrix --names``: cases that need no trainer, so that none is started."""

import json
from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from compat.single_controller.errors import ResourcePoolError
from parity_tests import isolated
from parity_tests.matrix import facts
from parity_tests.matrix.cells import Outcome
from parity_tests.matrix.fact import Fact
from runtime import environment
from runtime.errors import ResourceError, RolloutError
from verlift.parity.app import app


@pytest.fixture
def matrix(monkeypatch, tmp_path):
    monkeypatch.setattr(isolated, "Bench", nullcontext)
    monkeypatch.setattr(environment, "set_worker_env", lambda: None)

    def run(*arguments):
        return CliRunner().invoke(app, ["matrix", *arguments, "--out", str(tmp_path)])

    return run


def test_names_choose_cases(matrix, tmp_path):
    ran = matrix("--names", "case 18", "--names", "case 19", "--verbose")
    assert ran.exit_code == 0
    assert [line.split(":")[1].strip() for line in ran.stdout.splitlines() if "case" in line] == ["case 18", "case 19"]
    assert ran.stdout.splitlines()[-1] == "MATRIX PASS: 2 cells, 2 passed, 0 refused as expected, 0 diverged"
    assert json.loads((tmp_path / "report.json").read_text())["names"] == ["case 18", "case 19"]


def test_a_name_of_nothing_is_no_pass(matrix):
    ran = matrix("--names", "case 99")
    assert ran.exit_code == 2
    assert "--names case 99 is in the name of no case and of no cell" in ran.stderr


def raising(error):
    def check(*_):
        raise error
        yield

    return Fact("0", "raises", check)


RIGHT = Fact("1", "right", lambda *_: iter(()))


def test_a_case_in_which_the_trainers_differ_has_diverged_and_the_others_go_on(tmp_path):
    found = list(facts.run_facts(None, [raising(AssertionError("they differ")), RIGHT], tmp_path))
    assert [(result.outcome, result.detail) for result in found] == [
        (Outcome.DIVERGED, "they differ"),
        (Outcome.PASSED, ""),
    ]


@pytest.mark.parametrize("error", [ResourceError("no CPUs"), ResourcePoolError("no CPUs"), RolloutError("no answer")])
def test_what_could_not_run_is_no_divergence(error, matrix, monkeypatch):
    monkeypatch.setattr(facts, "FACTS", [raising(error), RIGHT])
    ran = matrix("--names", "case")
    assert ran.exit_code == 2
    assert f"COULD NOT RUN: {error}" in ran.stderr
