"""Print inspections: one table a step, two sides of a parity run beside each other with what differs marked."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from parity_tests.capture import Capture
from parity_tests.inspection import Inspection, inspect_capture
from parity_tests.storage import MANIFEST, plain
from runtime.errors import CaptureError

SIDES = ("legacy", "v1")
_PLAIN_WIDTH = 160
_SAME = "same"
_FINDINGS_SHOWN = 20
"""Of one side: a fault of every row need not scroll the table away."""


@dataclass(frozen=True)
class Line:
    """One fact on each side; None where a side does not have it. differs: in a way that the design does not explain."""

    step: int
    layer: str
    name: str
    values: tuple[Any, ...]
    differs: bool


def inspect_folder(folder: Path) -> list[Inspection]:
    """Of a capture, or of both captures of a parity run's folder. Raises CaptureError when it is neither."""
    if (folder / MANIFEST).exists():
        return [inspect_capture(Capture.open(folder))]
    if not any((folder / side).exists() for side in SIDES):
        raise CaptureError(
            f"{folder} has neither {MANIFEST} nor {' and '.join(SIDES)}: it is no capture and no parity run"
        )
    return [inspect_capture(Capture.open(folder / side), side) for side in SIDES]


def lines_of(inspections: Sequence[Inspection]) -> list[Line]:
    """Facts of all sides, matched by step, layer and name, in the order of the first side that has them."""
    by_side = [{(fact.step, fact.layer, fact.name): fact for fact in each.facts} for each in inspections]
    places = list(dict.fromkeys(place for facts in by_side for place in facts))
    lines = []
    for place in sorted(places, key=lambda place: place[0]):
        facts = [facts.get(place) for facts in by_side]
        values = tuple(fact.value if fact else None for fact in facts)
        by_design = any(fact.of_trainer for fact in facts if fact)
        lines.append(Line(*place, values, differs=not by_design and any(value != values[0] for value in values)))
    return lines


def exit_code(inspections: Sequence[Inspection]) -> int:
    """1 when anything looks wrong or differs between the sides, else 0."""
    return int(any(each.findings for each in inspections) or any(line.differs for line in lines_of(inspections)))


def print_inspections(inspections: Sequence[Inspection], console: Console | None = None) -> None:
    """A table for each step, then the findings, then one line that counts them."""
    console = console or Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    lines = lines_of(inspections)
    for step in dict.fromkeys(line.step for line in lines):
        console.print(_table(step, [line for line in lines if line.step == step], inspections))
    for each in inspections:
        for finding in each.findings[:_FINDINGS_SHOWN]:
            key = f" {finding.key}" if finding.key else ""
            text = f"! {each.label} step {finding.step} {finding.layer}{key}: {finding.text}"
            console.print(text, style="bold red", highlight=False, markup=False, soft_wrap=True)
        more = len(each.findings) - _FINDINGS_SHOWN
        if more > 0:
            console.print(f"! {each.label}: {more} more, all of them with --json", style="bold red", markup=False)
    found, differing = sum(len(each.findings) for each in inspections), sum(line.differs for line in lines)
    told = f"INSPECT {found} findings" if found else "INSPECT nothing looks wrong"
    told += f", {differing} of {len(lines)} facts differ" if len(inspections) > 1 else ""
    console.print(told, highlight=False, markup=False)


def as_json(inspections: Sequence[Inspection]) -> str:
    """The same for programs: ``sides``, ``facts`` with a value a side, ``findings``, ``exit_code``."""
    lines = [asdict(line) | {"values": list(line.values)} for line in lines_of(inspections)]
    findings = [{"side": each.label, **asdict(finding)} for each in inspections for finding in each.findings]
    content = {"version": 1, "sides": [each.label for each in inspections], "facts": lines, "findings": findings}
    return json.dumps(plain(content | {"exit_code": exit_code(inspections)}, "the inspection"), indent=1)


def _table(step: int, lines: Sequence[Line], inspections: Sequence[Inspection]) -> Table:
    marks = {(finding.step, finding.layer) for each in inspections for finding in each.findings}
    table = Table(title=f"step {step}", title_justify="left")
    for heading in ("", "layer", "", *(each.label for each in inspections)):
        table.add_column(heading, overflow="fold")
    layer = ""
    for line in lines:
        mark = "≠" if line.differs else "!" if line.layer != layer and (step, line.layer) in marks else ""
        # Text, because rich would read the brackets of a shape as its own markup.
        cells = [Text(_shown(value)) for value in line.values]
        for place, cell in enumerate(cells[1:], 1):
            if line.differs:
                cell.stylize("bold red")
            elif line.values[place] == line.values[0]:
                cells[place] = Text(_SAME, style="dim")
        name = Text("" if line.layer == layer else line.layer)
        table.add_row(Text(mark, style="bold red"), name, Text(line.name), *cells)
        layer = line.layer
    return table


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_shown(entry)}" for name, entry in value.items()) or "none"
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else str(value)
    return str(value)
