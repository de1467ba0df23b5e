"""Few cells in which every two values of two axes meet."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, islice, product

Cell = dict[str, str]
"""One value of every axis."""

Pair = tuple[tuple[str, str], tuple[str, str]]
"""Two values, each with its axis; axes in their order."""

_TRIES = 12
"""Cells that are built for each that is kept: more of them cover little more, and take as much longer."""


def pairs_of(axes: Mapping[str, Sequence[str]]) -> Iterator[Pair]:
    """Every two values of two axes."""
    for (one, values), (other, others) in combinations(axes.items(), 2):
        for value, another in product(values, others):
            yield (one, value), (other, another)


def pairs_in(cell: Mapping[str, str]) -> Iterator[Pair]:
    """The pairs that meet in ``cell``, which may lack axes."""
    return combinations(cell.items(), 2)


def pairwise(axes: Mapping[str, Sequence[str]], fits: Callable[[Mapping[str, str]], bool], seed: int) -> list[Cell]:
    """Cells that cover every pair which some cell can hold, greedily; the same for the same arguments.

    fits: whether the values of a cell, or of a part of one, go together. A pair that only fits on its own, and in no
    whole cell, is left out.
    """
    draw = random.Random(seed)
    missing = {pair for pair in pairs_of(axes) if fits(dict(pair))}
    cells: list[Cell] = []
    # In a fixed order: sets of strings have none that lasts from one process to the next.
    for pair in list(pairs_of(axes)):
        if pair not in missing:
            continue
        tries = [_filled(dict(pair), axes, missing, fits, draw) for _ in range(_TRIES)]
        built = [cell for cell in tries if cell is not None] or list(islice(_cells(dict(pair), axes, fits), 1))
        if built:
            cells.append(max(built, key=lambda cell: len(_gain(cell, missing))))
            missing -= _gain(cells[-1], missing)
    return cells


def _gain(cell: Mapping[str, str], missing: set[Pair]) -> set[Pair]:
    return missing.intersection(pairs_in(cell))


def _filled(
    cell: Cell,
    axes: Mapping[str, Sequence[str]],
    missing: set[Pair],
    fits: Callable[[Mapping[str, str]], bool],
    draw: random.Random,
) -> Cell | None:
    """``cell`` with a value on every axis: on each the one that covers most, ties drawn; None at a dead end."""
    rest = [axis for axis in axes if axis not in cell]
    draw.shuffle(rest)
    for axis in rest:
        options = [_in_order({**cell, axis: value}, axes) for value in axes[axis]]
        options = [option for option in options if fits(option)]
        if not options:
            return None
        gains = [len(_gain(option, missing)) for option in options]
        cell = draw.choice([option for option, gain in zip(options, gains, strict=True) if gain == max(gains)])
    return _in_order(cell, axes)


def _cells(cell: Cell, axes: Mapping[str, Sequence[str]], fits: Callable[[Mapping[str, str]], bool]) -> Iterator[Cell]:
    """Every whole cell around the values of ``cell``."""
    if not fits(cell):
        return
    axis = next((axis for axis in axes if axis not in cell), None)
    if axis is None:
        yield cell
        return
    for value in axes[axis]:
        yield from _cells(_in_order({**cell, axis: value}, axes), axes, fits)


def _in_order(cell: Mapping[str, str], axes: Mapping[str, Sequence[str]]) -> Cell:
    return {axis: cell[axis] for axis in axes if axis in cell}
