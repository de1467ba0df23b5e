"""What "equal" means where two batches share a key, and where they first differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compat import jagged


def deep_equal(left: Any, right: Any) -> bool:
    """Equality of type and value through arrays, tensors and containers; NaN equals NaN, and cycles end.

    Stricter than ``==`` in that ``1``, ``1.0`` and ``True`` are three values; inside a container ``==`` suffices, as in
    verl.
    """
    return _deep_equal(left, right, frozenset())


def _deep_equal(left: Any, right: Any, open_pairs: frozenset[tuple[int, int]]) -> bool:
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    pair = (id(left), id(right))
    if pair in open_pairs:  # a cycle: equal as far as it was followed
        return True
    inside = open_pairs | {pair}
    if isinstance(left, Tensor):
        return first_differing_row(left, right) is None
    if isinstance(left, np.ndarray):
        return _arrays_equal(left, right, inside)
    if isinstance(left, Mapping | list | tuple):
        return _plainly_equal(left, right) or _containers_equal(left, right, inside)
    if isinstance(left, float | np.floating):
        return left == right or (math.isnan(left) and math.isnan(right))
    return bool(left == right)


def _containers_equal(left: Any, right: Any, open_pairs: frozenset[tuple[int, int]]) -> bool:
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(_deep_equal(left[key], right[key], open_pairs) for key in left)
    return len(left) == len(right) and all(_deep_equal(a, b, open_pairs) for a, b in zip(left, right, strict=True))


def _plainly_equal(left: Any, right: Any) -> bool:
    """``left == right`` where that has one answer: arrays and tensors have no truth value, a cycle has no end."""
    try:
        return bool(left == right)
    except (ValueError, RuntimeError, TypeError):
        return False


def _arrays_equal(left: np.ndarray, right: np.ndarray, open_pairs: frozenset[tuple[int, int]]) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype != object:
        return np.array_equal(left, right, equal_nan=left.dtype.kind in "fcmM")
    return all(_deep_equal(a, b, open_pairs) for a, b in zip(left.flat, right.flat, strict=True))


def values_agree(left: Any, right: Any) -> bool:
    """Whether two meta_info values agree: equal by ``==``, or by ``deep_equal`` where ``==`` has no single answer."""
    return _plainly_equal(left, right) or deep_equal(left, right)


def first_differing_row(left: Tensor | np.ndarray, right: Tensor | np.ndarray) -> int | None:
    """The first row (index on dim 0) in which two columns differ; ``None`` when they are equal.

    Columns of another type, width or row count differ from row 0 on, arrays of another dtype too; tensors are compared
    by value, as in verl. Jagged rows differ when their lengths do.
    """
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return _first_differing_tensor_row(left, right.to(left.device))
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return _first_differing_array_row(left, right)
    return 0


def _first_differing_array_row(left: np.ndarray, right: np.ndarray) -> int | None:
    if deep_equal(left, right):
        return None
    if left.dtype != right.dtype or left.shape != right.shape or left.ndim == 0:
        return 0
    return next(row for row in range(len(left)) if not deep_equal(left[row], right[row]))


def _first_differing_tensor_row(left: Tensor, right: Tensor) -> int | None:
    if left.is_nested != right.is_nested:
        return 0
    if jagged.is_jagged(left) and jagged.is_jagged(right):
        return _first_differing_jagged_row(left, right)
    if left.shape != right.shape:
        return 0
    if torch.equal(left, right):
        return None
    differs = _differing_elements(left, right)
    rows = differs.flatten(1).any(1) if differs.dim() > 1 else differs.reshape(-1)
    return int(rows.nonzero()[0]) if bool(rows.any()) else None


def _first_differing_jagged_row(left: Tensor, right: Tensor) -> int | None:
    for row, (a, b) in enumerate(zip(left.unbind(), right.unbind(), strict=False)):
        if a.shape != b.shape or bool(_differing_elements(a, b).any()):
            return row
    return None if left.shape[0] == right.shape[0] else min(left.shape[0], right.shape[0])


def _differing_elements(left: Tensor, right: Tensor) -> Tensor:
    differs = left != right
    if left.dtype.is_floating_point and right.dtype.is_floating_point:
        differs &= ~(torch.isnan(left) & torch.isnan(right))
    return differs
