"""Compare one stage of two captures field by field."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from parity_tests.capture import StageCapture
from parity_tests.columns import row_pieces
from parity_tests.difference import Difference, deep_differences, difference, difference_of_pieces, shown
from parity_tests.rows import RowJoin
from parity_tests.verdict import EXACT, FieldVerdict, Kind, Status, Tolerance, missing
from runtime.fields import STAGES, Level
from shared_algos.segments import Segments

_FIELD_ORDER = [name for stage in STAGES for name in (*stage.writes, *stage.may_write)]


@dataclass(frozen=True, eq=False)
class StagePair:
    """One stage on both sides, its rows matched.

    tolerances: by stage or by ``stage.field``, which comes first; what is not named is judged by its bits.
    """

    left: StageCapture
    right: StageCapture
    rows: RowJoin
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)

    def tolerance(self, name: str) -> Tolerance:
        """How far the values of a field may be apart."""
        stage = self.left.stage
        return self.tolerances.get(f"{stage}.{name}", self.tolerances.get(stage, EXACT))

    def equal(self, name: str, kind: Kind) -> FieldVerdict:
        """The verdict that a field of this stage is equal, to be changed by what is found."""
        return FieldVerdict(self.left.step, self.left.stage, name, kind, Status.EQUAL)

    def missing(self, name: str, kind: Kind, in_left: bool) -> FieldVerdict:
        """The verdict on what only one side wrote."""
        return missing(self.left.step, self.left.stage, name, kind, in_left)

    def lengths(self, level: Level) -> tuple[Tensor, Tensor]:
        """Values a row of ``level`` on each side, int64 ``[J]``, in the order of the matched rows."""
        return self.left.lengths(level)[self.rows.left], self.right.lengths(level)[self.rows.right]

    def aligned(self, level: Level) -> bool:
        """Whether packed columns of ``level`` hold the same tokens in the same places on both sides."""
        return not self.rows.verdict.status.failed and self.left.lengths(level).equal(self.right.lengths(level))


def compare_stage(pair: StagePair) -> Iterator[FieldVerdict]:
    """Every field; keys and lengths first, since a value is only compared with its own row's and token's."""
    left, right = pair.left, pair.right
    if left.keys or right.keys:
        yield pair.rows.verdict
        yield _compare_lengths(pair, "prompt_lengths", Level.PROMPT)
        yield _compare_lengths(pair, "response_lengths", Level.RESPONSE)
    for name in sorted({*left.columns, *right.columns}, key=_field_rank):
        yield _compare_column(pair, name)
    for name in sorted({*left.objects, *right.objects}):
        yield _compare_objects(pair, name)
    for name in sorted({*left.series, *right.series}):
        yield _compare_series(pair, name)
    for name in sorted({*left.digests, *right.digests}):
        yield _compare_digest(pair, name)


def _field_rank(name: str) -> tuple[int, str]:
    """Columns in the order in which stages declare them: inputs of others (tokens, masks) before what follows."""
    return (_FIELD_ORDER.index(name) if name in _FIELD_ORDER else len(_FIELD_ORDER), name)


def _compare_lengths(pair: StagePair, name: str, level: Level) -> FieldVerdict:
    ours, theirs = pair.lengths(level)
    found = difference(ours, theirs)
    verdict = pair.equal(name, Kind.LENGTHS).measured(found)
    if found is None:
        return verdict
    first, second = int(ours[found.first]), int(theirs[found.first])
    # The token named is the first one that only one side has.
    return verdict.at(pair.rows.keys[found.first], min(first, second), str(first), str(second))


def _compare_column(pair: StagePair, name: str) -> FieldVerdict:
    if name not in pair.left.columns or name not in pair.right.columns:
        return pair.missing(name, Kind.COLUMN, name in pair.left.columns)
    ours, theirs = pair.left.columns[name], pair.right.columns[name]
    # What is stored is read to the end before anything is said, so that a damaged file never passes for a verdict.
    stored = [side for side in (pair.left, pair.right) if side.columns[name].stored]
    for side in stored:
        side.check(name)
    kinds = [f"{info.dtype} {list(info.shape[1:])} by {info.level}" for info in (ours, theirs)]
    if kinds[0] != kinds[1]:
        return pair.equal(name, Kind.COLUMN).diverged().at(left=kinds[0], right=kinds[1])
    if ours.sha256 == theirs.sha256 and pair.aligned(ours.level):
        return pair.equal(name, Kind.COLUMN).measured(None)
    if len(stored) < 2:
        return _judge_digests(pair, name, Kind.COLUMN, ours.sha256, theirs.sha256)
    return _compare_tokens(pair, name, ours.level)


def _compare_tokens(pair: StagePair, name: str, level: Level) -> FieldVerdict:
    """Compare the tokens that both sides have; a row that is longer on one side diverges where the other ends."""
    ours, theirs = pair.lengths(level)
    common = Segments.from_lengths(torch.minimum(ours, theirs))
    found = difference_of_pieces(_common_values(pair, name, level, common))
    uneven = (ours != theirs).nonzero().flatten().tolist()
    verdict = pair.equal(name, Kind.COLUMN).measured(found, pair.tolerance(name))
    if found is None and not uneven:
        return verdict
    if uneven:
        verdict = verdict.diverged()
    row, token = _first_place(common, found, uneven)
    key = pair.rows.keys[row]
    if token == int(common.lengths[row]):
        return verdict.at(key, token, f"a row of {int(ours[row])}", f"a row of {int(theirs[row])}")
    left, right = (values[token] for values in _values_of(pair, name, level, common, torch.tensor([row])))
    return verdict.at(key, None if level is Level.ROW else token, shown(left), shown(right))


def _common_values(pair: StagePair, name: str, level: Level, common: Segments) -> Iterator[tuple[Tensor, Tensor]]:
    """The first ``common`` tokens of the matched rows on both sides, in pieces of whole rows."""
    width = math.prod(pair.left.columns[name].shape[1:])
    for rows in row_pieces(common.lengths, width):
        yield _values_of(pair, name, level, common, rows)


def _values_of(pair: StagePair, name: str, level: Level, common: Segments, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The first ``common`` tokens of the matched rows ``rows`` on both sides."""
    sides = []
    for side, places in ((pair.left, pair.rows.left[rows]), (pair.right, pair.rows.right[rows])):
        lengths = side.lengths(level)
        starts = (lengths.cumsum(0) - lengths)[places]
        sides.append(side.read_ranges(name, starts, starts + common.lengths[rows]))
    return sides[0], sides[1]


def _first_place(common: Segments, found: Difference | None, uneven: list[int]) -> tuple[int, int]:
    """(row, token) of the first difference: of a value, or of the end of a row."""
    places = [(row, int(common.lengths[row])) for row in uneven[:1]]
    if found is not None:
        row = int(torch.searchsorted(common.offsets, found.first, right=True)) - 1
        places.append((row, found.first - int(common.offsets[row])))
    return min(places)


def _compare_objects(pair: StagePair, name: str) -> FieldVerdict:
    if name not in pair.left.objects or name not in pair.right.objects:
        return pair.missing(name, Kind.OBJECT, name in pair.left.objects)
    ours, theirs = pair.left.objects[name], pair.right.objects[name]
    equal = pair.equal(name, Kind.OBJECT)
    for key, row, other in zip(pair.rows.keys, pair.rows.left.tolist(), pair.rows.right.tolist(), strict=True):
        if json.dumps(ours[row]) != json.dumps(theirs[other]):
            path, (first, second) = next(iter(deep_differences(ours[row], theirs[other]).items()))
            return equal.diverged().at(key, None, f"{path} {first!r}".lstrip(), f"{path} {second!r}".lstrip())
    return equal


def _compare_series(pair: StagePair, name: str) -> FieldVerdict:
    if name not in pair.left.series or name not in pair.right.series:
        return pair.missing(name, Kind.SERIES, name in pair.left.series)
    ours, theirs = pair.left.series[name], pair.right.series[name]
    common = min(len(ours), len(theirs))
    left, right = (torch.tensor(side[:common], dtype=torch.float64) for side in (ours, theirs))
    found = difference(left, right)
    verdict = pair.equal(name, Kind.SERIES).measured(found, pair.tolerance(name))
    if len(ours) != len(theirs):
        verdict = verdict.diverged()
    if found is not None:
        return verdict.at(f"mini-batch:{found.first}", None, repr(ours[found.first]), repr(theirs[found.first]))
    if len(ours) != len(theirs):
        return verdict.at(f"mini-batch:{common}", None, f"{len(ours)} values", f"{len(theirs)} values")
    return verdict


def _compare_digest(pair: StagePair, name: str) -> FieldVerdict:
    if name not in pair.left.digests or name not in pair.right.digests:
        return pair.missing(name, Kind.WEIGHTS, name in pair.left.digests)
    ours, theirs = pair.left.digests[name], pair.right.digests[name]
    return pair.equal(name, Kind.WEIGHTS) if ours == theirs else _judge_digests(pair, name, Kind.WEIGHTS, ours, theirs)


def _judge_digests(pair: StagePair, name: str, kind: Kind, ours: str, theirs: str) -> FieldVerdict:
    """Digests know only that values differ: a field with a tolerance leaves the judgement to those that are stored."""
    judged = pair.equal(name, kind).left_to(pair.tolerance(name))
    return judged.at(left=f"sha256:{ours[:12]}", right=f"sha256:{theirs[:12]}")
