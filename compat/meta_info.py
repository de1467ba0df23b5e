"""How the ``meta_info`` of the parts of a concatenation become one.

The rule, key by key; no key is dropped:

1. ``metrics`` is collected: the parts' dicts (or lists of dicts) become one dict of lists, one entry for each part that
   reported the name, in the order of the parts. This is verl's rule, but a metric that only some parts report is kept
   too.
2. A key that all parts holding it agree on is kept as it is, also when some parts lack it.
3. ``timing`` and keys in verl's ``group/name`` form of a logged metric (``timing_s/gen``, ``actor/kl``) are
   measurements, which differ from part to part: their values become a list in the order of the parts, inside the dict
   where the value is one. verl raises here. No mean, sum or maximum is taken, since only the caller knows whether the
   parts ran in turn or side by side.
4. Any other key whose values differ is a setting on which the parts contradict each other: ``UnionConflictError``,
   naming it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from compat.equality import values_agree
from compat.errors import UnionConflictError

METRICS_KEY = "metrics"
TIMING_KEY = "timing"


def merge_meta_info(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One ``meta_info`` for the concatenation of parts that hold ``parts``, by the rule above."""
    merged: dict[str, Any] = {}
    for key in dict.fromkeys(key for part in parts for key in part):
        values = [part[key] for part in parts if key in part]
        if key == METRICS_KEY:
            merged |= _collect_metrics(values)
        elif all(values_agree(values[0], value) for value in values[1:]):
            merged[key] = values[0]
        elif _is_measurement(key):
            merged[key] = _collect(values)
        else:
            raise _conflict(key, [(number, part[key]) for number, part in enumerate(parts) if key in part])
    return merged


def _is_measurement(key: str) -> bool:
    return key == TIMING_KEY or "/" in key


def _collect_metrics(values: Iterable[Any]) -> dict[str, Any]:
    reports: list[Mapping[str, Any]] = []
    for value in values:
        if value is not None:
            reports.extend(value if isinstance(value, list) else [value])
    return {METRICS_KEY: _dict_of_lists(reports)} if reports else {}


def _collect(values: Sequence[Any]) -> Any:
    if all(isinstance(value, Mapping) for value in values):
        return _dict_of_lists(values)
    return list(values)


def _dict_of_lists(reports: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    collected: dict[str, list[Any]] = {}
    for report in reports:
        for name, value in report.items():
            collected.setdefault(name, []).append(value)
    return collected


def _conflict(key: str, holders: list[tuple[int, Any]]) -> UnionConflictError:
    first, reference = holders[0]
    other, value = next((number, value) for number, value in holders[1:] if not values_agree(reference, value))
    return UnionConflictError(
        f"meta_info {key!r} is {reference!r} in part {first} and {value!r} in part {other}; "
        "parts of one batch must agree on it: set it alike, or pop it before concatenating"
    )
