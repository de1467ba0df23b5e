"""What GitHub Actions shows: annotations of the run, and a summary of the job in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from parity_tests.reporting.model import Report, StageFields, stages_of
from parity_tests.reporting.terminal import notes_of, number
from parity_tests.reporting.workflow import error
from parity_tests.verdict import FieldVerdict, Status
from runtime.errors import CaptureError

MOST_ANNOTATIONS = 10
"""GitHub shows no more errors of one step."""

_MOST_ROWS = 25
_SIGNS = {Status.EQUAL: "=", Status.WITHIN: "≈", Status.DIVERGED: "✗", Status.MISSING: "∅"}


def annotate(report: Report) -> None:
    """Print the annotations to standard output, where the runner reads them."""
    for line in annotation_lines(report):
        print(line, flush=True)


def annotation_lines(report: Report) -> Iterator[str]:
    """One error a stage and step that failed, in their order, then one for a vacuous run; none when the run passed."""
    verdict, title = report.verdict, f"Parity {report.subject}".strip()
    failed = [stage for stage in stages_of(verdict) if stage.failed]
    room = MOST_ANNOTATIONS - bool(verdict.vacuous)
    told = failed if len(failed) <= room else failed[: room - 1]
    for stage in told:
        yield error(f"{title}: step {stage.step} {stage.stage} {stage.status}", verdict.describe(stage.failed[0]))
    if len(told) < len(failed):
        yield error(title, f"{len(failed) - len(told)} more stages diverged; the report has them all")
    if verdict.vacuous:
        yield error(f"{title}: vacuous", "; ".join(verdict.vacuous))


def append_summary(report: Report, path: Path) -> None:
    """Append the summary to the file that ``$GITHUB_STEP_SUMMARY`` names. Raises CaptureError when it cannot."""
    try:
        with path.open("a", encoding="utf-8", errors="replace") as stream:
            stream.write("\n".join(summary(report)) + "\n")
    except OSError as problem:
        raise CaptureError(f"could not write the summary to {path}: {problem}") from problem


def summary(report: Report) -> Iterator[str]:
    """The lines of the summary: verdict, stages by step, the fields that differ, and notes."""
    verdict, stages = report.verdict, stages_of(report.verdict)
    yield f"## Parity {report.outcome}: {code(report.comparison)}"
    yield f"\n{code(verdict.line)}\n"
    yield from _heat_map(stages)
    differing = [field for stage in stages for field in stage.fields if field.status is not Status.EQUAL]
    if differing:
        yield from _fields(differing, verdict.labels)
    for note in notes_of(verdict):
        yield f"- {code(note)}"


def _heat_map(stages: list[StageFields]) -> Iterator[str]:
    steps = sorted({stage.step for stage in stages})
    found = {(stage.step, stage.stage): stage.status for stage in stages}
    names = list(dict.fromkeys(stage.stage for stage in stages))
    shown = steps[:_MOST_ROWS]
    yield "| stage | " + " | ".join(f"step {step}" for step in shown) + " |"
    yield "|---" * (len(shown) + 1) + "|"
    for name in names:
        cells = (found.get((step, name)) for step in shown)
        yield f"| {_cell(name)} | " + " | ".join(f"{_SIGNS[cell]} {cell}" if cell else "" for cell in cells) + " |"
    if len(steps) > len(shown):
        yield f"\nThe first {len(shown)} of {len(steps)} steps."
    yield ""


def _fields(fields: list[FieldVerdict], labels: tuple[str, str]) -> Iterator[str]:
    sides = " | ".join(map(_cell, labels))
    yield f"| step | stage | field | verdict | max diff | first key | token | {sides} |"
    yield "|---" * 9 + "|"
    for field in fields[:_MOST_ROWS]:
        place = (_cell(field.stage), _cell(field.field))
        token = "" if field.token is None else str(field.token)
        values = (number(field.max_abs), _cell(field.key), token, _cell(field.left), _cell(field.right))
        yield "| " + " | ".join((str(field.step), *place, field.status.value, *values)) + " |"
    if len(fields) > _MOST_ROWS:
        yield f"\n{len(fields) - _MOST_ROWS} more fields are not equal."
    yield ""


def code(text: str) -> str:
    """``text`` as inline code of Markdown, whatever it holds; nothing for an empty text."""
    flat = " ".join(text.split())
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", flat)), default=0))
    return f"{fence} {flat} {fence}" if "`" in flat else f"`{flat}`" if flat else ""


def _cell(text: str | None) -> str:
    """Inline code in a table, where a bar ends the cell even within code."""
    return code(text or "").replace("|", "\\|")
