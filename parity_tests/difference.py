"""How far two tensors are apart, bit by bit, and where two plain structures differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from deepdiff import DeepDiff
from deepdiff.helper import notpresent
from torch import Tensor

from parity_tests.histogram import Histogram, histogram

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class Difference:
    """Where and how much two tensors of one shape and dtype differ in their bits.

    first: place on dim 0 of the first difference. max_abs, mean_abs: over all elements, infinite when a NaN faces a
    number. max_ulp: the most representable floats between two values, over pairs without a NaN; None if there are none.
    size: elements compared. histogram: of the distances of those that differ.
    """

    first: int
    max_abs: float
    mean_abs: float
    max_ulp: int | None
    size: int
    histogram: Histogram


def difference(left: Tensor, right: Tensor) -> Difference | None:
    """Compare ``left`` and ``right`` ``[N, ...]``, of one shape and dtype; None when every bit is equal.

    The same NaN on both sides is equal; 0.0 and -0.0 are not: they are one ulp apart.
    """
    return difference_of_pieces([(left, right)])


def difference_of_pieces(pieces: Iterable[tuple[Tensor, Tensor]]) -> Difference | None:
    """The ``difference`` of pieces put together on dim 0, one pair in memory at a time."""
    first: int | None = None
    entries = values = 0
    largest = total = 0.0
    ulps: list[int] = []
    distances: list[Histogram] = []
    for left, right in pieces:
        differs = _differs(left, right)
        if bool(differs.any()):
            if first is None:
                first = entries + int(differs.reshape(len(differs), -1).any(1).nonzero()[0])
            left_values, right_values = left[differs], right[differs]
            gaps = _gaps(left_values, right_values)
            largest, total = max(largest, float(gaps.max())), total + float(gaps.sum())
            ulps += _max_ulp(left_values, right_values)
            distances.append(histogram(gaps))
        entries, values = entries + len(left), values + left.numel()
    if first is None:
        return None
    return Difference(first, largest, total / values, max(ulps, default=None), values, reduce(add, distances))


def deep_differences(left: Any, right: Any, ignored: Sequence[str] = ()) -> dict[str, tuple[Any, Any]]:
    """Path -> (left, right) of every difference between two structures of dicts, lists, strings and numbers.

    A number and the same number of another type differ; what one side lacks is ``None``. ignored: regular expressions
    of paths, which look like ``['trainer']['use_v1']``.
    """
    found = DeepDiff(left, right, view="tree", exclude_regex_paths=list(ignored), threshold_to_diff_deeper=0)
    levels = [level for kind in found.values() for level in kind]
    sides = {level.path(root=""): (_side(level.t1), _side(level.t2)) for level in levels}
    return dict(sorted(sides.items()))


def shown(value: Tensor) -> str:
    """One element in the fewest digits that tell it from its neighbours; several as a list."""
    if value.dim():
        return str(value.tolist())
    if value.dtype in (torch.float32, torch.float64):
        return str(value.numpy())
    return str(value.item())


def _side(value: Any) -> Any:
    return None if value is notpresent else value


def _differs(left: Tensor, right: Tensor) -> Tensor:
    if left.shape != right.shape or left.dtype != right.dtype:
        raise ValueError(f"{left.dtype} {tuple(left.shape)} cannot be set against {right.dtype} {tuple(right.shape)}")
    return _bits(left) != _bits(right)


def _bits(values: Tensor) -> Tensor:
    return values.contiguous().view(_BITS[values.element_size()])


def _gaps(left: Tensor, right: Tensor) -> Tensor:
    """Absolute differences in float64; a NaN facing a number counts as infinite, two NaNs of other bits as 0."""
    if left.is_complex():
        gaps = (left.to(torch.complex128) - right.to(torch.complex128)).abs()
    elif left.is_floating_point():
        gaps = (left.double() - right.double()).abs()
    else:
        return _integer_gaps(left, right)
    both = left.isnan() & right.isnan()
    return gaps.masked_fill(gaps.isnan(), math.inf).masked_fill(both, 0.0)


def _integer_gaps(left: Tensor, right: Tensor) -> Tensor:
    """In whole numbers first: float64 cannot tell neighbours above 2^53 apart, and int64 has no room for all gaps."""
    a, b = (side.numpy().astype(np.uint64 if side.dtype is torch.uint64 else np.int64) for side in (left, right))
    low, high = np.minimum(a, b).view(np.uint64), np.maximum(a, b).view(np.uint64)
    return torch.from_numpy((high - low).astype(np.float64))


def _max_ulp(left: Tensor, right: Tensor) -> list[int]:
    """The most representable floats between two values of ``left`` and ``right [D]``; none when there are none."""
    if not left.is_floating_point():
        return []
    numbers = ~(left.isnan() | right.isnan())
    if not bool(numbers.any()):
        return []
    a, b = _rank(left[numbers]), _rank(right[numbers])
    return [int(np.where(a > b, a - b, b - a).max())]


def _rank(values: Tensor) -> np.ndarray:
    """Each float's place among all floats of its dtype, unsigned: neighbours are one apart, -0.0 just below 0.0."""
    bits = _bits(values).numpy().view(_UNSIGNED[values.element_size()])
    sign = bits.dtype.type(1 << (bits.dtype.itemsize * 8 - 1))
    return np.where(bits & sign, ~bits, bits | sign)
