"""Reading thresholds: numbers, strings that hold a number, and the two-sided form ``lower_upper``."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared_algos.errors import AlgorithmError


@dataclass(frozen=True)
class Bounds:
    """A positive upper bound and, in the two-sided form, a positive lower one that is not above it."""

    lower: float | None
    upper: float


def parse_bounds(field: str, value: Any, meaning: str) -> Bounds:
    """Read ``2.0``, ``"2.0"`` or ``"0.5_2.0"``.

    field: the config's key, and meaning: what may stand there, for the message of the ``AlgorithmError`` that anything
    else raises.
    """
    parts = value.split("_") if isinstance(value, str) else [value]
    bounds = [_number(part) for part in parts]
    if not 1 <= len(bounds) <= 2 or any(bound is None or not bound > 0 for bound in bounds):
        raise AlgorithmError(f"{field} is {value!r}; it must be {meaning}")
    lower, upper = bounds if len(bounds) == 2 else (None, bounds[0])
    assert upper is not None
    if lower is not None and lower > upper:
        raise AlgorithmError(f"{field} is {value!r}, whose lower bound {lower} is above its upper bound {upper}")
    return Bounds(lower, upper)


def split_list(value: Any) -> list[Any]:
    """The parts of a comma list; what is not a string is a list of one."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else [value]


def check_choice(field: str, value: Any, allowed: Sequence[str], also: str = "") -> None:
    """Raise ``AlgorithmError`` naming field, value and the nearest of the allowed names unless it is one of them."""
    if value not in allowed:
        near = difflib.get_close_matches(str(value), allowed, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        raise AlgorithmError(f"{field} is {value!r}{hint} allowed are {also}{', '.join(allowed)}")


def _number(part: Any) -> float | None:
    """``None`` for what is no number; a bool is none."""
    if isinstance(part, bool) or not isinstance(part, str | int | float):
        return None
    try:
        return float(part)
    except ValueError:
        return None
