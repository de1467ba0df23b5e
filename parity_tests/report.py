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


def print_report(verdict: Verdict, console: Console | None = None) -> None:
    """Print the table (step x stage x field), what else differs, and the last line."""
    console = console or Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    console.print(_table(verdict))
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
    for path, (left, right) in verdict.metadata.items():
        yield f"Note: {path} differs: {verdict.labels[0]} {left!r}, {verdict.labels[1]} {right!r}"
    failed = [field for field in verdict.fields if field.status.failed]
    if failed:
        yield f"{len(failed)} of {len(verdict.fields)} fields differ; the first:"


def _table(verdict: Verdict) -> Table:
    table = Table("step", "stage", "field", "verdict", "max diff", "mean diff", "ulp")
    for name in ("first key", "token", *verdict.labels):
        table.add_column(name, overflow="fold")
    for (step, stage), fields in groupby(verdict.fields, key=lambda field: (field.step, field.stage)):
        for row in _rows_of(list(fields)):
            # Text, because rich would read the brackets of a value as its own markup.
            table.add_row(str(step), stage, *map(Text, row[:1]), *row[1:2], *map(Text, row[2:]))
        table.add_section()
    return table


def _rows_of(fields: Sequence[FieldVerdict]) -> Iterator[tuple[Any, ...]]:
    """One row a field, but one for keys and lengths that are equal and one for all weights of a status.

    Weights are told by their number, the first of them, and the largest distance among them.
    """
    rows = [field for field in fields if field.kind in (Kind.KEYS, Kind.LENGTHS)]
    if rows and all(field.status is Status.EQUAL for field in rows):
        yield _row(rows[0], "keys and lengths")
        rows = []
    for field in fields:
        if field in rows or field.kind not in (Kind.KEYS, Kind.LENGTHS, Kind.WEIGHTS):
            yield _row(field, field.field)
    weights = [field for field in fields if field.kind is Kind.WEIGHTS]
    for status in Status:
        alike = [field for field in weights if field.status is status]
        if alike:
            name = f"{len(alike)} weights" + ("" if status is Status.EQUAL else f", first {alike[0].field}")
            yield _row(max(alike, key=lambda field: field.max_abs or 0.0), name)


def _row(field: FieldVerdict, name: str) -> tuple[Any, ...]:
    status = Text(field.status, style=_STYLES[field.status])
    equal = field.status is Status.EQUAL
    numbers = [_number(None if equal else value) for value in (field.max_abs, field.mean_abs, field.max_ulp)]
    place = [field.key or "", "" if field.token is None else str(field.token)]
    return (name, status, *numbers, *place, field.left or "", field.right or "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
