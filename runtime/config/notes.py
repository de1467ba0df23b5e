"""What the reading of a config reports, so that no key is dropped in silence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

NoteKind = Literal["inert", "free", "moved", "converted", "default", "warning"]

HEADINGS: dict[NoteKind, str] = {
    "moved": "moved to its present name",
    "converted": "converted to its present form",
    "inert": "accepted, has no effect",
    "free": "accepted, passed on as it is",
    "default": "default filled in",
    "warning": "warning",
}


@dataclass(frozen=True)
class ConfigNote:
    """One key and what became of it."""

    key: str
    kind: NoteKind
    message: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}"


def format_notes(notes: Iterable[ConfigNote]) -> str:
    """Notes as lines, in the order of ``HEADINGS``; keys that share one message share one line."""
    order = list(HEADINGS)
    ranked = sorted(notes, key=lambda note: (order.index(note.kind), note.message))
    lines = []
    for (kind, message), group in groupby(ranked, key=lambda note: (note.kind, note.message)):
        keys = ", ".join(dict.fromkeys(note.key for note in group))
        lines.append(f"config: {HEADINGS[kind]}: {keys}: {message}")
    return "\n".join(lines)
