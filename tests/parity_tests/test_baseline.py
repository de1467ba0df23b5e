"""This project's own baseline: both trainers still compute what they did when it was recorded.

Its sessions are recorded, so that no token depends on the CPU. On a machine with another fingerprint the model stages
are judged by tolerance, and the algorithm stages by their bits as everywhere.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from parity_tests import golden_run
from parity_tests.golden import Baseline
from parity_tests.golden_run import Source
from runtime.advantage import AdvantageStage

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
BASELINE = ROOT / "parity_tests" / "baselines" / "tiny_grpo"


@pytest.fixture
def baseline(monkeypatch) -> Baseline:
    monkeypatch.chdir(ROOT)  # its config names files from there
    return Baseline.open(BASELINE)


def test_the_numbers_are_those_of_the_baseline(cluster, baseline, tmp_path):  # noqa: ARG001
    findings = golden_run.check(baseline, Source.of(baseline).run(tmp_path / "now"))
    lines = list(findings.lines())
    assert lines[-1] == "PARITY PASS", "\n".join(lines)
    assert list(findings.verdicts) == ["legacy", "v1"]


def test_a_fault_in_code_that_both_trainers_share_is_found(cluster, baseline, tmp_path, monkeypatch):  # noqa: ARG001
    """Nothing that compares the trainers can find it. Of the two, legacy runs this code in the process of the test."""
    right = AdvantageStage.__call__

    def halved(self, batch, kl_coef):
        columns, scalars = right(self, batch, kl_coef)
        return columns | {"advantages": columns["advantages"] / 2}, scalars

    monkeypatch.setattr(AdvantageStage, "__call__", halved)
    captures = replace(Source.of(baseline), trainers=("legacy",)).run(tmp_path / "now")
    findings = golden_run.check(baseline, captures)
    first = findings.decisive.first
    assert (first.step, first.stage, first.field, first.token) == (1, "advantage", "advantages", 0)
    assert float(first.left) == pytest.approx(2 * float(first.right))
    assert (findings.config, findings.decisive.exit_code) == ({}, 1)


def test_it_is_small_and_names_its_commit(baseline):
    size = sum(path.stat().st_size for path in BASELINE.rglob("*") if path.is_file())
    assert size < 300_000
    assert len(baseline.manifest["git"]["commit"]) == 40
    assert baseline.manifest["git"]["changes"] == []
    assert baseline.captures["v1"].stage(2, "advantage").read("advantages").count_nonzero()
