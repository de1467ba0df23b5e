"""Compare two captures: every stage of every step, then the weights they ended with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from parity_tests.capture import Capture, stage_rank
from parity_tests.difference import deep_differences
from parity_tests.rows import join_rows
from parity_tests.stages import StagePair, compare_stage
from parity_tests.tolerances import tolerances_between
from parity_tests.vacuity import vacuous_reasons
from parity_tests.verdict import EXACT, FieldVerdict, Kind, Status, Tolerance, Verdict, missing
from parity_tests.weights import WEIGHTS_STAGE, compare_weights

# What the two sides of one run differ in by construction: the switch, and where each writes.
_EXPECTED = [r"\['trainer'\]\['(use_v1|default_local_dir|experiment_name)'\]$"]
_METADATA = ("config", "versions", "seeds", "fingerprint")


def compare(
    left: Capture,
    right: Capture,
    tolerances: Mapping[str, Tolerance] | None = None,
    by_position: bool | None = None,
) -> Verdict:
    """Set ``right`` against ``left``; one column of each is in memory at a time.

    tolerances: by stage (``weights`` for the exported ones) or ``stage.field``; what is not named is judged by bits.
    None judges all by bits where the fingerprints match, else models by ``tolerances.TABLE``, and the notes say so.
    by_position: match rows by (prompt position, session, index) instead of keys; None does so when no uid is shared.

    Raises CaptureError, naming the file, when a capture is truncated or was changed.
    """
    by_position = not _share_uids(left, right) if by_position is None else by_position
    judged_by, note = tolerances_between(left, right) if tolerances is None else (tolerances, None)
    found = list(_compare_fields(left, right, judged_by, by_position))
    fields = [verdict for verdict in found if not _unrecorded(verdict, left, right)]
    notes = [note] if note else []
    if len(fields) < len(found):
        unseen = f"{len(found) - len(fields)} fields were not compared, because a recorder did not see them on one side"
        notes.insert(0, unseen)
    places = {place for field in fields for place in (field.stage, f"{field.stage}.{field.field}")}
    if unused := [place for place in tolerances or {} if place not in places]:
        notes.append(f"no field is named by the tolerance of {', '.join(unused)}")
    ours, theirs = ({name: side.manifest.get(name, {}) for name in _METADATA} for side in (left, right))
    return Verdict(
        labels=_labels(left, right),
        fields=tuple(fields),
        vacuous=vacuous_reasons(left, right),
        metadata=deep_differences(ours, theirs, _EXPECTED),
        same_fingerprint=ours["fingerprint"] == theirs["fingerprint"],
        joined_by_position=by_position,
        notes=tuple(notes),
    )


def first_difference(left: Capture, right: Capture) -> FieldVerdict | None:
    """The first field that ``compare`` would call diverged or missing; nothing behind it is read."""
    tolerances, _ = tolerances_between(left, right)
    fields = _compare_fields(left, right, tolerances, by_position=not _share_uids(left, right))
    return next((field for field in fields if field.status.failed), None)


def _compare_fields(
    left: Capture, right: Capture, tolerances: Mapping[str, Tolerance], by_position: bool
) -> Iterator[FieldVerdict]:
    for step in sorted(left.index.keys() | right.index.keys()):
        ours, theirs = left.index.get(step, ()), right.index.get(step, ())
        for name in sorted({*ours, *theirs}, key=stage_rank):
            if name not in ours or name not in theirs:
                yield missing(step, name, "record", Kind.RECORD, in_left=name in ours)
                continue
            stages = left.stage(step, name), right.stage(step, name)
            rows = join_rows(*stages, by_position)
            yield from compare_stage(StagePair(*stages, rows, tolerances))
    yield from compare_weights(left, right, tolerances.get(WEIGHTS_STAGE, EXACT))


def _unrecorded(verdict: FieldVerdict, left: Capture, right: Capture) -> bool:
    """Whether only one side has this field because the other was made by a recorder."""
    without = left if verdict.left == "missing" else right
    return verdict.status is Status.MISSING and without.partial


def _share_uids(left: Capture, right: Capture) -> bool:
    """Whether the first stage with rows on both sides has a uid in common; also when there is no such stage."""
    for step, names in left.index.items():
        for name in names:
            if name in right.index.get(step, ()):
                ours, theirs = ({key.uid for key in side.stage(step, name).keys} for side in (left, right))
                if ours and theirs:
                    return not ours.isdisjoint(theirs)
    return True


def _labels(left: Capture, right: Capture) -> tuple[str, str]:
    """The trainers' names, else the directories', else A and B: the first pair that tells the sides apart."""
    pairs = [(left.trainer, right.trainer), (left.directory.name, right.directory.name), ("A", "B")]
    return next(pair for pair in pairs if pair[0] != pair[1])
