"""What a comparison of two captures says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from parity_tests.difference import Difference
from parity_tests.histogram import Histogram


class Status(StrEnum):
    """How one field compares."""

    EQUAL = "equal"
    WITHIN = "within tolerance"
    DIVERGED = "diverged"
    MISSING = "missing"

    @property
    def failed(self) -> bool:
        """Whether a run with such a field has diverged."""
        return self in (Status.DIVERGED, Status.MISSING)


class Kind(StrEnum):
    """What a field is."""

    RECORD = "record"
    """The stage as a whole: whether it was recorded on both sides."""
    KEYS = "keys"
    LENGTHS = "lengths"
    COLUMN = "column"
    OBJECT = "object"
    SERIES = "series"
    WEIGHTS = "weights"


@dataclass(frozen=True)
class Tolerance:
    """How far values may be apart and still pass: the largest and the mean absolute difference are both judged."""

    max_abs: float = 0.0
    mean_abs: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether only equal bits pass."""
        return self.max_abs == 0

    def judge(self, found: Difference) -> Status:
        """The status of values that are not bitwise equal."""
        within = not self.exact and found.max_abs <= self.max_abs and found.mean_abs <= self.mean_abs
        return Status.WITHIN if within else Status.DIVERGED


EXACT = Tolerance()


@dataclass(frozen=True)
class FieldVerdict:
    """One field of one stage of one step.

    max_abs, mean_abs, max_ulp: None where there is nothing to subtract. key: the first trajectory key that differs, as
    the left side names it; ``mini-batch:N`` for a series. token: its first differing token, counted within the prompt,
    response or sequence of that row; None for a field without tokens. left, right: the two values there. size: values
    compared, and histogram: the distances of those that differ; None where nothing was subtracted or nothing differs.
    tolerance: what judged it; None where only equal bits pass.
    """

    step: int
    stage: str
    field: str
    kind: Kind
    status: Status
    max_abs: float | None = None
    mean_abs: float | None = None
    max_ulp: int | None = None
    key: str | None = None
    token: int | None = None
    left: str | None = None
    right: str | None = None
    size: int | None = None
    histogram: Histogram | None = None
    tolerance: Tolerance | None = None

    def measured(self, found: Difference | None, tolerance: Tolerance = EXACT) -> FieldVerdict:
        """With the distances of ``found`` and the status that ``tolerance`` gives them; None means no difference."""
        limit = None if tolerance.exact else tolerance
        if found is None:
            return replace(self, max_abs=0.0, mean_abs=0.0, tolerance=limit)
        return replace(
            self,
            tolerance=limit,
            status=tolerance.judge(found),
            max_abs=found.max_abs,
            mean_abs=found.mean_abs,
            max_ulp=found.max_ulp,
            size=found.size,
            histogram=found.histogram,
        )

    def at(
        self, key: object = None, token: int | None = None, left: str | None = None, right: str | None = None
    ) -> FieldVerdict:
        """With the place of the first difference and both values there."""
        return replace(self, key=None if key is None else str(key), token=token, left=left, right=right)

    def diverged(self) -> FieldVerdict:
        """With the status DIVERGED."""
        return replace(self, status=Status.DIVERGED)

    def left_to(self, tolerance: Tolerance) -> FieldVerdict:
        """For values that differ by nobody knows how much: WITHIN where a tolerance allows anything, else DIVERGED."""
        return self.diverged() if tolerance.exact else replace(self, status=Status.WITHIN, tolerance=tolerance)


def missing(step: int, stage: str, name: str, kind: Kind, in_left: bool) -> FieldVerdict:
    """The verdict on what only one side has."""
    sides = ("present", "missing") if in_left else ("missing", "present")
    return FieldVerdict(step, stage, name, kind, Status.MISSING, left=sides[0], right=sides[1])


@dataclass(frozen=True)
class Verdict:
    """Whether two captures agree.

    labels: names of the two sides. fields: in stage order. vacuous: reasons why agreement would prove nothing.
    metadata: differences of config, versions, seeds and fingerprint, path -> (left, right); they decide nothing.
    same_fingerprint: whether both runs had the conditions under which equal inputs give equal bits in a model.
    joined_by_position: rows were matched by (prompt position, session, index) because the uids differ.
    notes: what else the reader should know; they decide nothing.
    """

    labels: tuple[str, str]
    fields: tuple[FieldVerdict, ...]
    vacuous: tuple[str, ...] = ()
    metadata: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    same_fingerprint: bool = True
    joined_by_position: bool = False
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> FieldVerdict | None:
        """The first divergence in stage order, or None."""
        return next((verdict for verdict in self.fields if verdict.status.failed), None)

    @property
    def exit_code(self) -> int:
        """0 when the sides agree, 1 when they diverged or the agreement is vacuous."""
        return 1 if self.first or self.vacuous else 0

    @property
    def line(self) -> str:
        """The last line of a report. A divergence outranks vacuity: it is proof of something."""
        if self.first:
            return f"PARITY DIVERGED at {self.describe(self.first)}"
        if self.vacuous:
            return on_one_line(f"PARITY VACUOUS: {'; '.join(self.vacuous)}")
        return "PARITY PASS"

    def describe(self, verdict: FieldVerdict) -> str:
        """``step S stage X field F key K token T: legacy A, v1 B``, with ``-`` for a field without key or token."""
        key = "-" if verdict.key is None else verdict.key
        token = "-" if verdict.token is None else verdict.token
        place = f"step {verdict.step} stage {verdict.stage} field {verdict.field} key {key} token {token}"
        return on_one_line(f"{place}: {self.labels[0]} {verdict.left}, {self.labels[1]} {verdict.right}")


def on_one_line(text: str) -> str:
    """``text`` with what cannot be printed escaped: programs read the last line of a report, and a uid may hold any."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
