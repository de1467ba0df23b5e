"""Match the rows of two captures of one stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parity_tests.capture import StageCapture
from parity_tests.verdict import FieldVerdict, Kind, Status
from runtime.identity import TrajectoryKey

Names = Sequence[Hashable]
"""What rows are matched by, one a row."""


@dataclass(frozen=True, eq=False)
class RowJoin:
    """J rows that both sides have.

    left, right: their row numbers on each side, int64 ``[J]``, in the order of the left side. keys: J, as the left side
    names them. verdict: of the field ``keys``: lost, added, repeated or reordered rows.
    """

    left: Tensor
    right: Tensor
    keys: tuple[TrajectoryKey, ...]
    verdict: FieldVerdict


def join_rows(left: StageCapture, right: StageCapture, by_position: bool) -> RowJoin:
    """Match rows by their keys, or by (prompt position, session, index) when the uids were made elsewhere."""
    ours, theirs = (_positions(side.keys) if by_position else side.keys for side in (left, right))
    if list(ours) == list(theirs) and len(set(ours)) == len(ours):
        # Nearly always so, and without the tables below, which cost more than a large capture's keys themselves.
        every = torch.arange(len(ours))
        return RowJoin(every, every, left.keys, _keys_equal(left))
    left_rows, right_rows = _rows_by_occurrence(ours), _rows_by_occurrence(theirs)
    shared = [name for name in left_rows if name in right_rows]
    rows = [left_rows[name] for name in shared]
    return RowJoin(
        left=torch.tensor(rows, dtype=torch.int64),
        right=torch.tensor([right_rows[name] for name in shared], dtype=torch.int64),
        keys=tuple(left.keys[row] for row in rows),
        verdict=_keys_verdict(left, right, ours, theirs),
    )


def _positions(keys: Sequence[TrajectoryKey]) -> Names:
    prompts: dict[str, int] = {}
    return [(prompts.setdefault(key.uid, len(prompts)), key.session_id, key.index) for key in keys]


def _rows_by_occurrence(names: Names) -> dict[Hashable, int]:
    """(name, 0 for its first row, 1 for its second, ...) -> row, so that a repeated key hides no row."""
    seen: Counter[Hashable] = Counter()
    rows: dict[Hashable, int] = {}
    for row, name in enumerate(names):
        rows[name, seen[name]] = row
        seen[name] += 1
    return rows


def _keys_verdict(left: StageCapture, right: StageCapture, ours: Names, theirs: Names) -> FieldVerdict:
    """Lost, added and repeated keys first, then keys in another order; the first one is named."""
    fault = _count_fault(left, right, ours, theirs) or _order_fault(left, ours, theirs)
    if fault is None:
        return _keys_equal(left)
    key, value, other = fault
    return FieldVerdict(
        left.step, left.stage, "keys", Kind.KEYS, Status.DIVERGED, key=str(key), left=value, right=other
    )


def _keys_equal(stage: StageCapture) -> FieldVerdict:
    return FieldVerdict(stage.step, stage.stage, "keys", Kind.KEYS, Status.EQUAL)


def _count_fault(
    left: StageCapture, right: StageCapture, ours: Names, theirs: Names
) -> tuple[TrajectoryKey, str, str] | None:
    counts, other_counts = Counter(ours), Counter(theirs)
    for name, key in [*zip(ours, left.keys, strict=True), *zip(theirs, right.keys, strict=True)]:
        if (counts[name], other_counts[name]) != (1, 1):
            return key, _times(counts[name]), _times(other_counts[name])
    return None


def _order_fault(left: StageCapture, ours: Names, theirs: Names) -> tuple[TrajectoryKey, str, str] | None:
    for row, (name, other) in enumerate(zip(ours, theirs, strict=True)):
        if name != other:
            return left.keys[row], f"row {row}", f"row {list(theirs).index(name)}"
    return None


def _times(count: int) -> str:
    return {0: "absent", 1: "present"}.get(count, f"present {count} times")
