"""A verdict in the terminal: a table, what else differs, and the last line."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from parity_tests.reporting.model import Line, lines_of, stages_of
from parity_tests.verdict import FieldVerdict, Status, Verdict

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
    for note in notes_of(verdict):
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    failed = sum(field.status.failed for field in verdict.fields)
    if failed:
        console.print(f"{failed} of {len(verdict.fields)} fields differ; the first:", highlight=False)
    console.print(verdict.line, highlight=False, markup=False, soft_wrap=True)


def notes_of(verdict: Verdict) -> Iterator[str]:
    """What the reader should know beside the fields, a sentence each."""
    if not verdict.same_fingerprint:
        yield "Note: the runs were made under different fingerprints; model stages need not be bitwise equal."
    if verdict.joined_by_position:
        yield "Note: no uid is shared; rows are matched by (prompt position, session, index)."
    yield from (f"Note: {note}" for note in verdict.notes)
    for path, (left, right) in verdict.metadata.items():
        yield f"Note: {path} differs: {verdict.labels[0]} {left!r}, {verdict.labels[1]} {right!r}"


def _table(verdict: Verdict, verbose: bool) -> Table:
    """All lines, a rule between steps; columns in which nothing stands are left out."""
    names = ("step", "stage", "field", "verdict", "max diff", "mean diff", "ulp", "first key", "token", *verdict.labels)
    differs = any(field.status is not Status.EQUAL for field in verdict.fields)
    lines: list[Line] = []
    for stage in stages_of(verdict):
        single = list(lines_of(stage))
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


def _equal_on_one(lines: list[Line], with_names: bool) -> list[Line]:
    """The lines of one stage, those that are equal on the first."""
    equal = [line for line in lines if line[0].status is Status.EQUAL]
    if len(equal) < 2:
        return lines
    name = ", ".join(name for _, name in equal) if with_names else f"{len(equal)} fields"
    return [(equal[0][0], name), *(line for line in lines if line not in equal)]


def _row(field: FieldVerdict, name: str) -> list[Text]:
    equal = field.status is Status.EQUAL
    numbers = [number(None if equal else value) for value in (field.max_abs, field.mean_abs, field.max_ulp)]
    place = [field.key or "", "" if field.token is None else str(field.token)]
    # Text, because rich would read the brackets of a value as its own markup.
    cells = [Text(cell) for cell in (str(field.step), field.stage, name, field.status.value)]
    cells[-1].stylize(_STYLES[field.status])
    return [*cells, *(Text(cell) for cell in (*numbers, *place, field.left or "", field.right or ""))]


def number(value: float | None) -> str:
    """A distance in three digits, a count in all of its own; nothing for None."""
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
