"""Run cells of the matrix: each stage of both trainers, fed alike, must agree or refuse as a rule says."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import prod
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from parity_tests.isolated import Bench, isolated
from parity_tests.isolated.outputs import isolated_outputs
from parity_tests.isolated.runs import Isolated
from parity_tests.isolated.synthetic import Size, synthetic_feed
from parity_tests.matrix.axes import AXES, RULES, Rule, config_of, fits
from parity_tests.matrix.covering import Cell, pairwise
from runtime.errors import ConfigError

SEVERAL_OUTPUTS = Rule(
    {"shape": "multi_output"}, "returned 2 outputs; the legacy trainer holds one row a session", stage="rollout"
)
"""The one refusal that only the legacy trainer makes."""


class Outcome(StrEnum):
    """How a cell ended."""

    PASSED = "passed"
    REFUSED = "refused as expected"
    DIVERGED = "diverged"


@dataclass(frozen=True)
class CellResult:
    """One cell. detail: the refusal, or the first divergence; seed repeats the batch."""

    name: str
    cell: Mapping[str, str]
    seed: int
    outcome: Outcome
    detail: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def pruned_cells(seed: int = 0) -> list[Cell]:
    """Cells in which every two values meet that do not refuse each other, and one cell for each rule."""
    axes = {axis: list(values) for axis, values in AXES.items()}
    return [*pairwise(axes, fits, seed), *(_refused_cell(rule) for rule in RULES)]


def chosen_cells(full: bool, sample: int | None, seed: int) -> Iterator[Cell]:
    """The pruned cells, or with ``full`` the whole product; of either only ``sample`` different ones, by ``seed``."""
    pruned = [] if full else pruned_cells(seed)
    total = prod(len(values) for values in AXES.values()) if full else len(pruned)
    numbers = range(total) if sample is None else random.Random(seed).sample(range(total), min(sample, total))
    yield from (_cell_at(number) if full else pruned[number] for number in numbers)


def run_cells(bench: Bench, cells: Iterable[tuple[int, Cell]], directory: Path, seed: int = 0) -> Iterator[CellResult]:
    """The results one by one, of numbered cells. Captures of those that diverged stay below ``directory``."""
    for number, cell in cells:
        yield run_cell(bench, cell, directory / f"cell-{number}", seed + number)


def name_of(cell: Cell) -> str:
    """The values of ``cell``, as reports name it."""
    return "/".join(cell.values())


def run_cell(bench: Bench, cell: Cell, directory: Path, seed: int) -> CellResult:
    """One cell on a batch made from ``seed``."""
    started = time.perf_counter()
    outcome, detail = _judge(bench, cell, directory, seed)
    if outcome is not Outcome.DIVERGED:
        shutil.rmtree(directory, ignore_errors=True)
    return CellResult(name_of(cell), cell, seed, outcome, detail, time.perf_counter() - started)


def counts(results: Sequence[CellResult]) -> dict[str, int]:
    """How many cells there are of each outcome."""
    found = Counter(result.outcome for result in results)
    return {"cells": len(results), **{str(outcome): found[outcome] for outcome in Outcome}}


def _judge(bench: Bench, cell: Cell, directory: Path, seed: int) -> tuple[Outcome, str]:
    rules = [rule for rule in RULES if rule.holds(cell)]
    try:
        config = config_of(cell)
    except ConfigError as error:
        return _refused([rule for rule in rules if rule.stage == "config"], str(error))
    if missing := [rule for rule in rules if rule.stage == "config"]:
        return Outcome.DIVERGED, f"the config was to be refused: {missing[0].refusal}"
    rules += [SEVERAL_OUTPUTS] if SEVERAL_OUTPUTS.holds(cell) else []
    return judge(fed(bench, config, cell["shape"], directory, seed), rules)


def fed(bench: Bench, config: DictConfig, shape: str, directory: Path, seed: int, size: Size | None = None) -> Isolated:
    """Both trainers on a batch of ``shape``."""
    feed = synthetic_feed(shape, seed, size)
    return (isolated_outputs if shape == "multi_output" else isolated)(bench, config, feed, directory)


def judge(found: Isolated, rules: Sequence[Rule], possible: Sequence[Rule] = ()) -> tuple[Outcome, str]:
    """The outcome where ``rules`` say what is to be refused, and ``possible`` what may be: that and nothing else."""
    expected = {rule.stage: rule for rule in rules}
    known = {rule.stage: rule for rule in (*possible, *rules)}
    for stage, messages in found.refusals.items():
        sides = {"legacy"} if stage == SEVERAL_OUTPUTS.stage else {"legacy", "v1"}
        if stage not in known or set(messages) != sides or not all(map(known[stage].matches, messages.values())):
            return Outcome.DIVERGED, f"stage {stage} is refused: {dict(messages)}"
    if unmet := expected.keys() - found.refusals.keys():
        return Outcome.DIVERGED, f"stage {min(unmet)} was to be refused: {expected[min(unmet)].refusal}"
    # What both sides refuse is recorded on neither.
    if found.verdict.first:
        return Outcome.DIVERGED, found.verdict.describe(found.verdict.first)
    refused = [message for messages in found.refusals.values() for message in messages.values()]
    return (Outcome.REFUSED, refused[0]) if refused else (Outcome.PASSED, "")


def _refused(rules: Sequence[Rule], message: str) -> tuple[Outcome, str]:
    expected = any(rule.matches(message) for rule in rules)
    return (Outcome.REFUSED, message) if expected else (Outcome.DIVERGED, f"the config is refused: {message}")


def _refused_cell(rule: Rule) -> Cell:
    """The values of ``rule``, and on every other axis the first one that no other rule refuses."""
    cell = dict(rule.when)
    for axis, values in AXES.items():
        if axis not in cell:
            others = [other for other in RULES if other is not rule]
            free = (value for value in values if not any(other.holds({**cell, axis: value}) for other in others))
            cell[axis] = next(free)
    return {axis: cell[axis] for axis in AXES}


def _cell_at(number: int) -> Cell:
    cell = {}
    for axis, values in AXES.items():
        number, place = divmod(number, len(values))
        cell[axis] = list(values)[place]
    return cell
