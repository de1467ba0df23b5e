"""Planted faults: they fit the code as it stands, come out again, and are found."""

from __future__ import annotations

import pytest

from parity_tests.mutants.mutant import Mutant, MutantError, resolve, restore
from parity_tests.mutants.registry import MUTANTS, SHARED
from parity_tests.mutants.report import last_line
from parity_tests.mutants.score import Place, Score
from parity_tests.mutants.settings import SETTINGS
from runtime.fields import STAGE_NAMES
from shared_algos.groups import group_std
from shared_algos.segments import Segments


def test_there_are_as_many_as_promised_over_all_stages():
    assert len(MUTANTS) >= 40
    assert len(SHARED) >= 15
    assert {mutant.stage for mutant in MUTANTS.values()} == set(STAGE_NAMES)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_fits_the_code_as_it_stands(mutant):
    """It changes the function's code, and that is one line of it."""
    assert mutant.setting in SETTINGS
    assert mutant.code() != resolve(mutant.target).__code__
    assert "\n" not in mutant.old + mutant.new


def test_a_planted_fault_reaches_whoever_has_imported_the_function_and_comes_out_again():
    import torch

    scores, groups = torch.tensor([1.0, 3.0]), Segments.from_lengths([2])
    right = float(group_std(scores, groups))
    mutant = MUTANTS["biased std of a group"]
    mutant.plant()
    try:
        assert float(group_std(scores, groups)) == 1.0
    finally:
        restore(mutant.target)
    assert float(group_std(scores, groups)) == right == pytest.approx(2**0.5)


def test_a_mutant_that_no_longer_fits_says_so():
    mutant = Mutant("old", "shared", "shared_algos.groups:group_std", "no such line", "", "advantage", (), "grpo")
    with pytest.raises(MutantError, match="stands 0 times in shared_algos"):
        mutant.plant()


def score(name: str, **places: tuple[str, str] | None) -> Score:
    return Score(MUTANTS[name], {q: None if place is None else Place(*place) for q, place in places.items()})


def test_each_question_is_scored_for_itself():
    """A fault of one trainer is found by comparing the two, a shared one by what is independent of both."""
    right, near = ("advantage", "advantages"), ("update_actor", "actor/loss")
    shared, own = "biased std of a group", "advantages and returns exchanged"
    scores = [
        score(shared, isolated=None, chained=None, golden=right, reference=near),
        score(own, isolated=None, chained=right, golden=right),
        score(own, isolated=near, chained=None, golden=right),
        score(shared, isolated=right, chained=right, golden=None),
    ]
    assert [each.found for each in scores] == [True, True, False, False]
    assert last_line(scores) == (
        "MUTANTS SURVIVED: 4 mutants, 2 found at their own stage and field; "
        "2 of one trainer: isolated 0 of 2, chained 1 of 2, golden 2 of 2, reference 0 of 0; "
        "2 shared: golden 1 of 2, reference 0 of 1"
    )
    assert last_line(scores[:1]).startswith("MUTANTS PASS: 1 mutants, 1 found")
