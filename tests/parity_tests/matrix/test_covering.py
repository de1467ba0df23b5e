"""Pairwise cells hold every pair that can be held, and are few."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from parity_tests.matrix.axes import AXES, fits
from parity_tests.matrix.cells import pruned_cells
from parity_tests.matrix.covering import pairs_in, pairs_of, pairwise

NAMES = [f"axis {number}" for number in range(5)]
AXIS_SIZES = st.lists(st.integers(1, 5), min_size=2, max_size=5)


def axes_of(sizes):
    return {name: [f"{value}" for value in range(size)] for name, size in zip(NAMES, sizes, strict=False)}


def covered(cells):
    return {pair for cell in cells for pair in pairs_in(cell)}


@settings(max_examples=30)
@given(AXIS_SIZES, st.integers(0, 9))
def test_every_pair_meets_in_a_cell(sizes, seed):
    axes = axes_of(sizes)
    cells = pairwise(axes, lambda _: True, seed)
    assert covered(cells) == set(pairs_of(axes))
    assert all(list(cell) == list(axes) for cell in cells)
    largest = sorted(sizes)[-2:]
    assert len(cells) <= 2 * largest[0] * largest[1]


@settings(max_examples=30)
@given(AXIS_SIZES, st.integers(0, 9), st.data())
def test_no_cell_holds_a_pair_that_does_not_fit_and_every_other_pair_that_can_meet_does(sizes, seed, data):
    axes = axes_of(sizes)
    pairs = list(pairs_of(axes))
    barred = set(data.draw(st.lists(st.sampled_from(pairs), max_size=3)))
    cells = pairwise(axes, lambda cell: barred.isdisjoint(pairs_in(cell)), seed)
    whole = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    assert covered(cells) == covered(cell for cell in whole if barred.isdisjoint(pairs_in(cell)))


def test_the_same_seed_gives_the_same_cells_and_another_one_others():
    axes = {axis: list(values) for axis, values in AXES.items()}
    assert pairwise(axes, fits, 3) == pairwise(axes, fits, 3)
    assert pairwise(axes, fits, 3) != pairwise(axes, fits, 4)


def test_the_matrix_covers_every_pair_that_no_rule_refuses():
    axes = {axis: list(values) for axis, values in AXES.items()}
    cells = pruned_cells()
    wanted = {pair for pair in pairs_of(axes) if fits(dict(pair))}
    assert wanted <= covered(cell for cell in cells if fits(cell))
    # Not more than a third above the fewest that can do: every estimator with every loss.
    assert len(cells) <= 4 / 3 * len(axes["estimator"]) * len(axes["loss"])
