"""Planted faults: they fit the code as it stands, come out again, and are found."""

from __future__ import annotations

import pytest

from parity_tests.mutants.mutant import Mutant, MutantError, resolve, restore
from parity_tests.mutants.registry import MUTANTS, SHARED
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
