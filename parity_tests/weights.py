"""Compare the weights that two runs ended with, by value: digests have told before whether they are equal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from parity_tests.capture import Capture
from parity_tests.columns import dtype_of, opened, pieces_of, shape_of
from parity_tests.difference import difference_of_pieces, shown
from parity_tests.verdict import FieldVerdict, Kind, Status, Tolerance, missing

WEIGHTS_STAGE = "weights"


def compare_weights(left: Capture, right: Capture, tolerance: Tolerance) -> Iterator[FieldVerdict]:
    """One verdict a tensor, under the last step; none when neither side exported weights."""
    step = max([*left.index, *right.index], default=0)
    if left.weights is None or right.weights is None:
        if left.weights is not right.weights:
            yield missing(step, WEIGHTS_STAGE, "export", Kind.WEIGHTS, in_left=left.weights is not None)
        return
    ours, theirs = _names(left.weights), _names(right.weights)
    for name in sorted({*ours, *theirs}):
        if name not in ours or name not in theirs:
            yield missing(step, WEIGHTS_STAGE, name, Kind.WEIGHTS, in_left=name in ours)
        else:
            yield _compare_weight(step, name, left.weights, right.weights, tolerance)


def read_weights(capture: Capture) -> Iterator[tuple[str, Tensor]]:
    """Name and value of each exported weight, one in memory at a time; nothing when the run exported none."""
    if capture.weights is not None:
        for name in sorted(_names(capture.weights)):
            yield name, _read(capture.weights, name)


def _names(file: Path) -> set[str]:
    with opened(file) as tensors:
        return set(tensors.keys())


def _read(file: Path, name: str) -> Tensor:
    with opened(file) as tensors:
        tensor: Tensor = tensors.get_tensor(name)
    return tensor


def _compare_weight(step: int, name: str, left: Path, right: Path, tolerance: Tolerance) -> FieldVerdict:
    kinds = [f"{dtype_of(file, name)} {list(shape_of(file, name))}" for file in (left, right)]
    if kinds[0] != kinds[1]:
        return FieldVerdict(step, WEIGHTS_STAGE, name, Kind.WEIGHTS, Status.DIVERGED, left=kinds[0], right=kinds[1])
    found = difference_of_pieces(_flat_pieces(name, left, right))
    verdict = FieldVerdict(step, WEIGHTS_STAGE, name, Kind.WEIGHTS, Status.EQUAL).measured(found, tolerance)
    if found is None:
        return verdict
    return verdict.at(left=_shown(left, name, found.first), right=_shown(right, name, found.first))


def _flat_pieces(name: str, left: Path, right: Path) -> Iterator[tuple[Tensor, Tensor]]:
    for ours, theirs in zip(pieces_of(left, name), pieces_of(right, name), strict=True):
        yield ours.reshape(-1), theirs.reshape(-1)


def _shown(file: Path, name: str, place: int) -> str:
    with opened(file) as tensors:
        return shown(tensors.get_tensor(name).reshape(-1)[place])
