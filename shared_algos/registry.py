"""Algorithms by name, each with what it needs, so that a config can be refused before anything runs."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from shared_algos.errors import DuplicateAlgorithmError, UnknownAlgorithmError

F = TypeVar("F", bound=Callable[..., Any])

logger = logging.getLogger(__name__)


class Level(StrEnum):
    """What one value of an algorithm's result belongs to."""

    TOKEN = "token"
    """A token; whatever else is in the batch enters by statistics alone."""
    OUTCOME = "outcome"
    """A session: one number goes in and one comes out."""
    SEQUENCE = "sequence"
    """A row: its tokens share one value, such as a ratio of whole sequences."""
    BATCH = "batch"
    """The whole batch, masked tokens included: functions with signatures of their own."""


@dataclass(frozen=True)
class Entry(Generic[F]):
    """One registered algorithm."""

    name: str
    """As written in the config."""
    function: F
    needs: frozenset[str]
    """Optional input fields that must be there, such as ``values``."""
    level: Level
    """What one value of its result belongs to."""
    reference: str
    """The paper, or the function whose behaviour is followed."""
    select: Callable[..., Any] | None = None
    """What looks at a whole mini-batch before the loss of its parts is computed (policy losses only)."""

    @property
    def source(self) -> tuple[str, str]:
        """Module and qualified name: two imports of one file give equal sources."""
        named = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        return named.__module__, named.__qualname__


class Registry(Generic[F]):
    """Algorithms of one kind by name.

    kind: what the entries are, for error messages, such as ``"advantage estimator"``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry[F]] = {}

    def register(
        self,
        *names: str,
        needs: Iterable[str] = (),
        level: Level = Level.TOKEN,
        reference: str = "",
        select: Callable[..., Any] | None = None,
        replace: bool = False,
    ) -> Callable[[F], F]:
        """Register the decorated function under ``names`` (several names are aliases of one implementation).

        The same source again is a no-op, because Ray imports a module once more in each worker.
        replace: whether the function may take a name over from another one, with a warning.
        Raises ``DuplicateAlgorithmError`` for any other second claim on a name.
        """

        def decorate(function: F) -> F:
            for name in names:
                self._add(Entry(name, function, frozenset(needs), level, reference, select), replace)
            return function

        return decorate

    def _add(self, entry: Entry[F], replace: bool) -> None:
        known = self._entries.setdefault(entry.name, entry)
        if known.source == entry.source:
            return
        if replace:
            logger.warning("%s %r is %s now, no longer %s", self.kind, entry.name, *map(_dotted, (entry, known)))
            self._entries[entry.name] = entry
        else:
            raise DuplicateAlgorithmError(
                f"{self.kind} {entry.name!r} is already {_dotted(known)}; register {_dotted(entry)} under another name"
            )

    def restore(self, name: str, entry: Entry[F] | None) -> None:
        """Drop what is registered under ``name``, for ``entry`` if there is one. Raises ``KeyError`` for no name."""
        del self._entries[name]
        if entry is not None:
            self._entries[name] = entry

    def get(self, name: str) -> Entry[F]:
        """The entry of ``name``. Raises ``UnknownAlgorithmError`` with the nearest known names."""
        if name not in self._entries:
            near = difflib.get_close_matches(name, self.names(), n=3) or self.names()
            raise UnknownAlgorithmError(f"unknown {self.kind} {name!r}; did you mean {' or '.join(map(repr, near))}?")
        return self._entries[name]

    def names(self) -> tuple[str, ...]:
        """All registered names, sorted."""
        return tuple(sorted(self._entries))


def _dotted(entry: Entry[Any]) -> str:
    return ".".join(entry.source)
