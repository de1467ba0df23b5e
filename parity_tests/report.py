"""Tell a verdict: a table for the terminal, ``report.json`` for programs, and one last line for both."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from parity_tests.storage import plain, write_json
from parity_tests.verdict import FieldVerdict, Kind, Status, Verdict

REPORT_VERSION = 1
_STYLES = {Status.EQUAL: "green", Status.WITHIN: "yellow", Status.DIVERGED: "bold red", Status.MISSING: "bold red"}
# Wide enough for a uid and two values where the output is a file or a pipe, which has no width of its own.
_PLAIN_WIDTH = 200


def print_report(verdict: Verdict, console: Console | None = None, verbose: bool = False) -> None:
    """Print the table (step x stage x field), what else differs, and the last line.

    The equal fields of a stage share a line: it names them, or counts them where a field that differs needs the width.
    With ``verbose`` each has its own.
    """
    console = console or Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    console.print(_table(verdict, verbose))
    for note in _notes(verdict):
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    console.print(verdict.line, highlight=False, markup=False, soft_wrap=True)


def write_report(verdict: Verdict, path: Path) -> None:
    """Write ``report.json``, beside and renamed; distances that are not finite are strings."""
    first = verdict.first
    write_json(
        path,
        {
            "version": REPORT_VERSION,
            "verdict": {0: "pass", 1: "diverged" if first else "vacuous"}[verdict.exit_code],
            "exit_code": verdict.exit_code,
            "line": verdict.line,
            "labels": list(verdict.labels),
            "first_divergence": _as_json(first) if first else None,
            "vacuous": list(verdict.vacuous),
            "same_fingerprint": verdict.same_fingerprint,
            "joined_by_position": verdict.joined_by_position,
            "notes": list(verdict.notes),
            "metadata": {path: plain(sides, path) for path, sides in verdict.metadata.items()},
            "fields": [_as_json(field) for field in verdict.fields],
        },
    )


def _as_json(field: FieldVerdict) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(field).items()
    }


def _notes(verdict: Verdict) -> Iterator[str]:
    if not verdict.same_fingerprint:
        yield "Note: the runs were made under different fingerprints; model stages need not be bitwise equal."
    if verdict.joined_by_position:
        yield "Note: no uid is shared; rows are matched by (prompt position, session, index)."
    yield from (f"Note: {note}" for note in verdict.notes)
    for path, (left, right) in verdict.metadata.items():
        yield f"Note: {path} differs: {verdict.labels[0]} {left!r}, {verdict.labels[1]} {right!r}"
    failed = [field for field in verdict.fields if field.status.failed]
    if failed:
        yield f"{len(failed)} of {len(verdict.fields)} fields differ; the first:"


def _table(verdict: Verdict, verbose: bool) -> Table:
    """All lines, a rule between steps; columns in which nothing stands are left out."""
    names = ("step", "stage", "field", "verdict", "max diff", "mean diff", "ulp", "first key", "token", *verdict.labels)
    differs = any(field.status is not Status.EQUAL for field in verdict.fields)
    lines: list[_Line] = []
    for _, fields in groupby(verdict.fields, key=lambda field: (field.step, field.stage)):
        single = list(_single_lines(list(fields)))
        lines += single if verbose else _equal_on_one(single, with_names=not differs)
    rows = [_row(field, name) for field, name in lines]
    kept = [column for column in range(len(names)) if any(row[column] for row in rows)]
    table = Table()
    for column in kept:
        table.add_column(names[column], overflow="fold")
    for place, (row, (field, _)) in enumerate(zip(rows, lines, strict=True)):
        last = place + 1 == len(lines) or lines[place + 1][0].step != field.step
        table.add_row(*(row[column] for column in kept), end_section=last)
    return table


_Line = tuple[FieldVerdict, str]
"""A verdict and the name that it is printed under."""


def _single_lines(fields: Sequence[FieldVerdict]) -> Iterator[_Line]:
    """One line a field, but one for keys and lengths that are equal and one for all weights of a status.

    Weights are told by their number, the first of them, and the largest distance among them.
    """
    rows = [field for field in fields if field.kind in (Kind.KEYS, Kind.LENGTHS)]
    if rows and all(field.status is Status.EQUAL for field in rows):
        yield rows[0], "keys and lengths"
        rows = []
    for field in fields:
        if field in rows or field.kind not in (Kind.KEYS, Kind.LENGTHS, Kind.WEIGHTS):
            yield field, field.field
    weights = [field for field in fields if field.kind is Kind.WEIGHTS]
    for status in Status:
        alike = [field for field in weights if field.status is status]
        if alike:
            name = f"{len(alike)} weights" + ("" if status is Status.EQUAL else f", first {alike[0].field}")
            yield max(alike, key=lambda field: field.max_abs or 0.0), name


def _equal_on_one(lines: list[_Line], with_names: bool) -> list[_Line]:
    """The lines of one stage, those that are equal on the first."""
    equal = [line for line in lines if line[0].status is Status.EQUAL]
    if len(equal) < 2:
        return lines
    name = ", ".join(name for _, name in equal) if with_names else f"{len(equal)} fields"
    return [(equal[0][0], name), *(line for line in lines if line not in equal)]


def _row(field: FieldVerdict, name: str) -> list[Text]:
    equal = field.status is Status.EQUAL
    numbers = [_number(None if equal else value) for value in (field.max_abs, field.mean_abs, field.max_ulp)]
    place = [field.key or "", "" if field.token is None else str(field.token)]
    # Text, because rich would read the brackets of a value as its own markup.
    cells = [Text(cell) for cell in (str(field.step), field.stage, name, field.status.value)]
    cells[-1].stylize(_STYLES[field.status])
    return [*cells, *(Text(cell) for cell in (*numbers, *place, field.left or "", field.right or ""))]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
