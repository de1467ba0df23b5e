"""``report.json``: a verdict for programs, as ``parity_tests/report.schema.json`` describes it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from importlib import resources
from pathlib import Path
from typing import Any

from parity_tests.reporting.excerpt import Excerpt
from parity_tests.reporting.model import Report, Side
from parity_tests.storage import plain, written_beside
from parity_tests.verdict import FieldVerdict

REPORT_VERSION = 3
"""Rises when a property joins, leaves or changes its meaning. Version 1 had no schema."""


def schema() -> dict[str, Any]:
    """The JSON schema of ``report.json``, draft 2020-12, as it ships with this package."""
    return json.loads((resources.files("parity_tests") / "report.schema.json").read_text(encoding="utf-8"))


def as_document(report: Report) -> dict[str, Any]:
    """The content of ``report.json``; distances that are not finite are strings."""
    verdict = report.verdict
    return {
        "$schema": f"urn:verlift:parity-report:{REPORT_VERSION}",
        "version": REPORT_VERSION,
        "verdict": report.outcome,
        "exit_code": verdict.exit_code,
        "line": verdict.line,
        "subject": report.subject,
        "labels": list(verdict.labels),
        "first_divergence": _field(verdict.first) if verdict.first else None,
        "excerpts": [_excerpt(excerpt) for excerpt in report.excerpts],
        "vacuous": list(verdict.vacuous),
        "same_fingerprint": verdict.same_fingerprint,
        "joined_by_position": verdict.joined_by_position,
        "notes": list(verdict.notes),
        "metadata": {path: plain(sides, path) for path, sides in verdict.metadata.items()},
        "sides": [_side(side) for side in report.sides],
        "fields": [_field(field) for field in verdict.fields],
    }


def write_document(report: Report, path: Path) -> None:
    """Write ``report.json`` as strict JSON, one line a field, beside and renamed."""
    document = as_document(report)
    heads = [f"{json.dumps(name)}: {_line(value)}" for name, value in document.items() if name != "fields"]
    rows = ",\n".join(f"  {_line(field)}" for field in document["fields"])
    with written_beside(path) as temporary:
        temporary.write_text("{\n " + ",\n ".join([*heads, f'"fields": [\n{rows}\n ]']) + "\n}\n", encoding="utf-8")


def _line(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _field(verdict: FieldVerdict) -> dict[str, Any]:
    values = {field.name: getattr(verdict, field.name) for field in fields(verdict)}
    return {
        **{name: str(value) if _not_finite(value) else value for name, value in values.items()},
        "histogram": verdict.histogram.as_json() if verdict.histogram else None,
        "tolerance": asdict(verdict.tolerance) if verdict.tolerance else None,
    }


def _not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _excerpt(excerpt: Excerpt) -> dict[str, Any]:
    return {
        "label": excerpt.label,
        "key": excerpt.key,
        "row_number": row if isinstance(row := excerpt.row.get("row_number"), int) else None,
        "tokens": [
            {"part": token.part, "place": token.place, "id": token.id, "text": token.text, "marked": token.marked}
            for token in excerpt.tokens
        ],
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "label": side.label,
        "capture": side.capture,
        "versions": dict(side.versions),
        "seeds": dict(side.seeds),
        "fingerprint": dict(side.fingerprint),
    }
