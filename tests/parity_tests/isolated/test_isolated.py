"""Stages of both trainers, fed alike in standing actors; a sample of the matrix."""

from __future__ import annotations

from itertools import islice

import pytest

from parity_tests.compare import compare
from parity_tests.golden import check
from parity_tests.isolated import Bench, feed_of, isolated
from parity_tests.isolated.synthetic import synthetic_feed
from parity_tests.matrix.axes import RULES, config_of, derived
from parity_tests.matrix.cells import Outcome, chosen_cells, run_cell
from parity_tests.matrix.facts import FACTS
from parity_tests.mutants.registry import MUTANTS
from parity_tests.mutants.score import Prover, planted
from parity_tests.run import capture_run, for_parity
from parity_tests.sweep import drawn, sweep
from parity_tests.third_opinion import against_reference
from runtime.advantage import AdvantageStage
from shared_algos.errors import AlgorithmError

pytestmark = pytest.mark.ray

GAE = {
    "algorithm.adv_estimator": "gae",
    "algorithm.use_kl_in_reward": True,
    "actor_rollout_ref.actor.use_kl_loss": True,
}
STAGES = ("reward", "balance", "old_log_prob", "ref_log_prob", "values", "advantage", "update_critic", "update_actor")


@pytest.fixture(scope="module")
def bench(cluster):  # noqa: ARG001
    with Bench() as standing:
        yield standing


@pytest.fixture(scope="module")
def gae(bench, tmp_path_factory):
    """Every stage of both trainers, on one made-up batch."""
    return isolated(bench, derived(GAE), synthetic_feed("ragged", 1), tmp_path_factory.mktemp("gae") / "run")


def test_every_stage_of_both_is_recorded_and_agrees(gae):
    assert gae.alarm is None
    assert not gae.refusals
    for run in gae.sides.values():
        assert run.capture.index == {1: STAGES}
    fields = {(field.stage, field.field) for field in gae.verdict.fields}
    assert {("values", "values"), ("advantage", "returns"), ("update_critic", "critic/grad_norm")} <= fields
    assert any(stage == "update_actor" and name.startswith("actor.") for stage, name in fields)


def test_stages_are_fed_what_the_feed_holds_and_not_each_other(gae):
    """The advantages that the actor's loss saw are the feed's: its own stage made others."""
    capture, fed = gae.sides["v1"].capture, synthetic_feed("ragged", 1)
    made = capture.stage(1, "advantage").read("advantages")
    assert not made.equal(fed.before("update_actor")["advantages"])


def test_the_same_stages_again_give_the_same_bits(bench, gae, tmp_path):
    """Nothing of an earlier config or update stays in the actors."""
    isolated(bench, config_of({"estimator": "rloo", "loss": "gspo"}), synthetic_feed("ragged", 7), tmp_path / "other")
    again = isolated(bench, derived(GAE), synthetic_feed("ragged", 1), tmp_path / "again")
    for side, run in gae.sides.items():
        for stage in run.capture.stages():
            other = again.sides[side].capture.stage(1, stage.stage)
            assert other.series == stage.series
            assert other.digests == stage.digests
            assert all(other.columns[name].sha256 == info.sha256 for name, info in stage.columns.items())


def test_a_fault_in_one_trainer_is_named_at_its_stage_and_goes_no_further(bench, tmp_path, monkeypatch):
    """The legacy trainer runs its advantage stage here, V1 in its data worker."""
    right = AdvantageStage.__call__

    def wrong(self, batch, kl_coef):
        return right(self, batch, 2 * kl_coef)

    monkeypatch.setattr(AdvantageStage, "__call__", wrong)
    found = isolated(bench, derived(GAE), synthetic_feed("ragged", 1), tmp_path / "run")
    assert "stage advantage field token_level_rewards" in found.alarm
    assert {field.stage for field in found.verdict.fields if field.status.failed} == {"advantage"}


def test_a_refusal_of_one_trainer_is_an_alarm(bench, tmp_path, monkeypatch):
    def refuse(self, batch, kl_coef):  # noqa: ARG001
        raise AlgorithmError("not today")

    monkeypatch.setattr(AdvantageStage, "__call__", refuse)
    found = isolated(bench, derived(GAE), synthetic_feed("ragged", 1), tmp_path / "run", ["reward", "advantage"])
    assert found.alarm == "stage advantage is refused differently: {'legacy': 'AlgorithmError: not today'}"


def test_a_run_can_be_fed_again(bench, tmp_path):
    """A whole run of one trainer, its sessions played: both make of its inputs, stage by stage, what it made."""
    config = derived(GAE)
    run = capture_run(bench.player("v1"), for_parity(config, "v1", 1, tmp_path / "run"), tmp_path / "run", False)
    found = isolated(bench, config, feed_of(run), tmp_path / "fed")
    assert found.alarm is None
    for side in found.sides.values():
        for stage in STAGES[:6]:
            assert side.capture.stage(1, stage).columns.keys() == run.stage(1, stage).columns.keys()
            for name, info in run.stage(1, stage).columns.items():
                assert side.capture.stage(1, stage).columns[name].sha256 == info.sha256
        # The first update starts from the same weights and rows; the one of the actor does not wait for the critic's.
        for stage in ("update_critic", "update_actor"):
            assert side.capture.stage(1, stage).series == run.stage(1, stage).series
            assert side.capture.stage(1, stage).digests == run.stage(1, stage).digests


def test_a_sample_of_the_matrix(bench, tmp_path):
    """On one rank, to be quick; ``verlift parity matrix`` runs all of it."""
    cells = [cell for cell in chosen_cells(False, 24, seed=1) if cell["ranks"] == "1"][:6]
    several = {**cells[0], "estimator": "rloo", "shape": "multi_output"}
    for number, cell in enumerate([*cells, several]):
        result = run_cell(bench, cell, tmp_path / f"{number}", seed=number)
        assert result.outcome is (Outcome.REFUSED if cell["shape"] == "multi_output" else Outcome.PASSED), result


def test_cases_with_known_values(bench, tmp_path):
    """Those of one rank; ``verlift parity matrix`` runs all of them."""
    cases = {fact.number: fact for fact in FACTS}
    for number in ("4", "5", "6", "8, 9", "11", "12", "16", "17", "20", "22"):
        assert list(cases[number].check(bench, tmp_path / number)) == [], number


def test_a_known_value_finds_a_fault_that_both_trainers_share(bench, tmp_path):
    (case,) = (fact for fact in FACTS if fact.number == "21")
    assert list(case.check(bench, tmp_path / "right")) == []
    with planted(MUTANTS["reward lost on a masked token"], bench, ranks=1):
        wrong = list(case.check(bench, tmp_path / "wrong"))
    assert wrong[0] == "gae of legacy: [0.0, 0.0, 0.0, 0.0, 0.0], expected [1, 1, 1, 0, 0]"
    assert {line.partition(":")[0] for line in wrong} == {
        f"{name} of {side}" for name in ("gae", "reinforce_plus_plus", "remax") for side in ("legacy", "v1")
    }


def test_sweeps_raise_no_alarm(bench, tmp_path):
    one_rank = (seed for seed in range(100) if drawn(seed)[0]["ranks"] == "1")
    for seed in islice(one_rank, 3):
        (result,) = sweep(bench, tmp_path, 1, seed)
        assert result.outcome is not Outcome.DIVERGED, result


SAMPLE = [
    "biased std of a group",
    "stale log-probs taken for new ones",
    "seed off by one",
    "values shifted by a token",
    "sessions under one key",
    "mask of ones",
    "a lost key",
]
"""Each of another kind, in settings that take a second; none of them needs a second rank."""


@pytest.fixture(scope="module")
def prover(bench, tmp_path_factory):
    return Prover(bench, tmp_path_factory.mktemp("mutants"), ranks=1)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_fault_is_found_where_it_was_planted(prover, name):
    score = prover.score(MUTANTS[name])
    assert score.found, {question: str(place) for question, place in score.places.items()}
    if score.mutant.trainer == "shared":
        assert score.places["chained"] is None


def test_without_a_fault_no_question_finds_anything(prover):
    clean = prover.clean("ppo")
    for side, run in clean.runs.items():
        assert check(clean.baseline, run).first is None
        assert against_reference(run).first is None
        assert not clean.fed[side].refusals
    fed = [run.capture for run in clean.fed.values()]
    assert compare(fed[0], fed[1], by_position=False).first is None


def test_what_a_rule_expects_is_refused_and_nothing_less(bench, tmp_path):
    (rule,) = (rule for rule in RULES if rule.stage == "advantage")
    cell = next(cell for cell in chosen_cells(False, None, 0) if rule.holds(cell))
    assert run_cell(bench, cell, tmp_path / "right", 0).outcome is Outcome.REFUSED
    result = run_cell(bench, {**cell, "shape": "ragged"}, tmp_path / "other", 0)
    assert result.outcome is Outcome.PASSED
