"""What every form of a report is made from: the verdict, what the runs were made with, and the tokens around the first
divergence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from parity_tests.capture import Capture
from parity_tests.reporting.excerpt import Excerpt, excerpts_of
from parity_tests.verdict import FieldVerdict, Kind, Status, Verdict

_SEVERITY = (Status.EQUAL, Status.WITHIN, Status.MISSING, Status.DIVERGED)


@dataclass(frozen=True)
class Side:
    """What one run was made with. capture: its folder, as it was given."""

    label: str
    capture: str
    versions: Mapping[str, Any]
    seeds: Mapping[str, Any]
    fingerprint: Mapping[str, Any]

    @classmethod
    def of(cls, label: str, capture: Capture) -> Side:
        """The side that ``capture`` is of."""
        made_with = (capture.manifest.get(name, {}) for name in ("versions", "seeds", "fingerprint"))
        return cls(label, str(capture.directory), *made_with)


@dataclass(frozen=True)
class Report:
    """A verdict and what it takes to explain it.

    sides: those that are captures. excerpts: the row of the first divergence, from each side that has other tokens
    there; none when no row is named. subject: what was compared where a command compares several things, such as the
    trainer whose run of now is set against its baseline.
    """

    verdict: Verdict
    sides: tuple[Side, ...] = ()
    excerpts: tuple[Excerpt, ...] = ()
    subject: str = ""

    @classmethod
    def of(
        cls, verdict: Verdict, left: Capture | None = None, right: Capture | None = None, subject: str = ""
    ) -> Report:
        """The report on ``verdict``; a side that is no capture (a computed reference) is None."""
        captures = dict(zip(verdict.labels, (left, right), strict=True))
        there = {label: capture for label, capture in captures.items() if capture is not None}
        return cls(
            verdict,
            sides=tuple(Side.of(label, capture) for label, capture in there.items()),
            excerpts=excerpts_of(verdict, left, right),
            subject=subject,
        )

    @property
    def comparison(self) -> str:
        """``legacy against v1``; with a subject ``v1: baseline against now``."""
        return f"{self.subject}: " * bool(self.subject) + " against ".join(self.verdict.labels)

    @property
    def outcome(self) -> str:
        """``pass``, ``diverged`` or ``vacuous``."""
        return "diverged" if self.verdict.first else "vacuous" if self.verdict.vacuous else "pass"


@dataclass(frozen=True)
class StageFields:
    """The fields of one stage of one step."""

    step: int
    stage: str
    fields: tuple[FieldVerdict, ...]

    @property
    def status(self) -> Status:
        """The worst of its fields."""
        return max((field.status for field in self.fields), key=_SEVERITY.index)

    @property
    def failed(self) -> tuple[FieldVerdict, ...]:
        """Fields with which a run has diverged."""
        return tuple(field for field in self.fields if field.status.failed)


Line = tuple[FieldVerdict, str]
"""A verdict and the name that it is told under."""


def stages_of(verdict: Verdict) -> list[StageFields]:
    """The fields by step and stage, in their order."""
    groups = groupby(verdict.fields, key=lambda field: (field.step, field.stage))
    return [StageFields(step, stage, tuple(fields)) for (step, stage), fields in groups]


def lines_of(stage: StageFields) -> Iterator[Line]:
    """One line a field, but one for keys and lengths that are equal and one for all weights of a status.

    Weights are told by their number, the first of them, and the largest distance among them.
    """
    rows = [field for field in stage.fields if field.kind in (Kind.KEYS, Kind.LENGTHS)]
    if rows and all(field.status is Status.EQUAL for field in rows):
        yield rows[0], "keys and lengths"
        rows = []
    for field in stage.fields:
        if field in rows or field.kind not in (Kind.KEYS, Kind.LENGTHS, Kind.WEIGHTS):
            yield field, field.field
    weights = [field for field in stage.fields if field.kind is Kind.WEIGHTS]
    for status in Status:
        alike = [field for field in weights if field.status is status]
        if alike:
            name = f"{len(alike)} weights" + ("" if status is Status.EQUAL else f", first {alike[0].field}")
            yield max(alike, key=lambda field: field.max_abs or 0.0), name
