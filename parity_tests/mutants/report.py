"""The table of planted faults, and ``report.json`` for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from parity_tests.mutants.score import QUESTIONS, Score
from parity_tests.storage import write_json

REPORT_VERSION = 1
_PLAIN_WIDTH = 200


def told(scores: Iterable[Score]) -> list[Score]:
    """Print a line for each score as it comes; all of them."""
    kept = []
    for score in scores:
        kept.append(score)
        word = "found" if score.found else "SURVIVED"
        seen = ", ".join(f"{question} {_cell(score, question)}" for question in score.places)
        print(f"{word}: {score.mutant.name} ({score.mutant.stage}): {seen}", flush=True)
    return kept


def print_table(scores: Sequence[Score], console: Console | None = None) -> None:
    """One line a mutant: ``found`` where a question saw it at its own stage and field, else what it saw."""
    console = console or Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    table = Table()
    for name in ("mutant", "trainer", "stage", *QUESTIONS):
        table.add_column(name, overflow="fold")
    for score in scores:
        cells = [_cell(score, question) for question in QUESTIONS]
        table.add_row(score.mutant.name, score.mutant.trainer, score.mutant.stage, *cells)
    console.print(table)
    console.print(last_line(scores), highlight=False, markup=False, soft_wrap=True)


def last_line(scores: Sequence[Score]) -> str:
    """Whether every mutant was found where it was planted; then, for each kind, by how many of those that were asked.

    A comparison of the trainers cannot see a shared fault, and is not counted for one.
    """
    found = sum(score.found for score in scores)
    word = "PASS" if found == len(scores) else "SURVIVED"
    parts = [f"MUTANTS {word}: {len(scores)} mutants, {found} found at their own stage and field"]
    own = [score for score in scores if score.mutant.trainer != "shared"]
    shared = [score for score in scores if score.mutant.trainer == "shared"]
    for name, kind, questions in (("of one trainer", own, QUESTIONS), ("shared", shared, QUESTIONS[2:])):
        if kind:
            parts.append(f"{len(kind)} {name}: " + ", ".join(_tally(kind, question) for question in questions))
    return "; ".join(parts)


def _tally(scores: Sequence[Score], question: str) -> str:
    asked = [score for score in scores if question in score.places]
    return f"{question} {sum(score.right(question) for score in asked)} of {len(asked)}"


def write_report(scores: Sequence[Score], path: Path) -> None:
    """Write ``report.json``, beside and renamed."""
    write_json(path, {"version": REPORT_VERSION, "line": last_line(scores), "mutants": [_as_json(s) for s in scores]})


def _cell(score: Score, question: str) -> str:
    if question not in score.places:
        return "-"
    place = score.places[question]
    if place is None:
        return "no"
    return "found" if score.right(question) else f"at {place}"


def _as_json(score: Score) -> dict[str, Any]:
    places = {question: None if place is None else asdict(place) for question, place in score.places.items()}
    return {**asdict(score.mutant), "fields": list(score.mutant.fields), "found": score.found, "places": places}
