"""The tables in ``configs/``: verl's keys, what becomes of those we do not read, and old names."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

from runtime.config.flat import prefixes

CONFIG_DIR = Path(__file__).resolve().parents[2] / "configs"
"""Found beside this package, so that a user's own ``configs`` folder cannot take its place."""

Status = Literal["inert", "unsupported", "free"]
ABSENT = "-"
"""Marks a version without the key in ``verl_keys.tsv``."""


@dataclass(frozen=True)
class KnownKey:
    """One row of ``known_keys.tsv``: a key or glob (``*`` matches dots too), its status and the reason."""

    pattern: str
    status: Status
    reason: str


def _rows(name: str) -> list[dict[str, str]]:
    with (CONFIG_DIR / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


@cache
def verl_defaults() -> dict[str, tuple[Any, ...]]:
    """Every key of verl 0.9.0 and 0.10.dev with its defaults there (interpolations as text)."""
    versions = ("0.9.0", "0.10.dev")
    return {
        row["key"]: tuple(json.loads(row[version]) for version in versions if row[version] != ABSENT)
        for row in _rows("verl_keys.tsv")
    }


@cache
def old_defaults() -> dict[str, Any]:
    """Every key that verl has or had, with its default in the last version that has it."""
    removed = {row["key"]: json.loads(row["default"]) for row in _rows("verl_old_keys.tsv")}
    return {**removed, **{key: defaults[0] for key, defaults in verl_defaults().items() if defaults}}


@cache
def known_keys() -> tuple[KnownKey, ...]:
    """The rows of ``known_keys.tsv`` in file order."""
    return tuple(KnownKey(row["key"], row["status"], row["reason"]) for row in _rows("known_keys.tsv"))  # type: ignore[arg-type]


@cache
def aliases() -> dict[str, str]:
    """Old names of keys or of whole groups, and their present names."""
    return {row["old"]: row["new"] for row in _rows("aliases.tsv")}


@cache
def known_key(key: str) -> KnownKey | None:
    """The row that speaks of ``key``: the one that names it, else the first pattern that matches."""
    rows = known_keys()
    exact = (row for row in rows if row.pattern == key)
    globs = (row for row in rows if fnmatchcase(key, row.pattern))
    return next(exact, None) or next(globs, None)


def present_name(key: str) -> str | None:
    """The present name of a key with an old name, or None.

    >>> present_name("reward_model.reward_manager")
    'reward.reward_manager.name'
    """
    for prefix in (key, *prefixes(key)):
        if prefix in aliases():
            return aliases()[prefix] + key[len(prefix) :]
    return None
