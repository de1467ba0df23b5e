"""Tell what became of the cells: a line for each that needs one, the counts, and ``report.json`` for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from parity_tests.matrix.cells import CellResult, Outcome, counts
from parity_tests.storage import write_json

REPORT_VERSION = 1


def told(results: Iterable[CellResult], verbose: bool = False, expected: Outcome = Outcome.PASSED) -> list[CellResult]:
    """Print each result that is neither passed nor ``expected``, or with ``verbose`` every one, as it comes; all."""
    kept = []
    for result in results:
        kept.append(result)
        if verbose or result.outcome not in (Outcome.PASSED, expected):
            print(f"{result.outcome}: {result.name} (seed {result.seed}, {result.seconds:.1f} s)", flush=True)
            if result.detail:
                print(f"    {result.detail}", flush=True)
    return kept


def last_line(found: Mapping[str, int], name: str = "MATRIX") -> str:
    """``MATRIX PASS: 166 cells, ...``, or ``MATRIX DIVERGED: ...``."""
    word = "DIVERGED" if found[Outcome.DIVERGED] else "PASS"
    return f"{name} {word}: " + ", ".join(f"{count} {what}" for what, count in found.items())


def write_report(results: Sequence[CellResult], path: Path, **about: Any) -> None:
    """Write ``report.json``, beside and renamed. about: what the run was asked for."""
    found = counts(results)
    content = {"version": REPORT_VERSION, **about, "line": last_line(found), "counts": found}
    write_json(path, {**content, "cells": [result.as_json() for result in results]})
