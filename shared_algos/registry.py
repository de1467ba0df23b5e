"""Algorithms by name, each with what it needs, so that a config can be refused before anything runs."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shared_algos.errors import DuplicateAlgorithmError, UnknownAlgorithmError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry(Generic[F]):
    """One registered algorithm."""

    name: str
    """As written in the config."""
    function: F
    needs: frozenset[str]
    """Optional input fields that must be there, such as ``values``."""
    outcome: bool
    """Whether it sees one outcome a session instead of tokens (advantage estimators only)."""
    reference: str
    """The paper, or the function whose behaviour is followed."""

    @property
    def source(self) -> tuple[str, str]:
        """Module and qualified name: two imports of one file give equal sources."""
        return self.function.__module__, self.function.__qualname__


class Registry(Generic[F]):
    """Algorithms of one kind by name.

    kind: what the entries are, for error messages, such as ``"advantage estimator"``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry[F]] = {}

    def register(
        self, *names: str, needs: Iterable[str] = (), outcome: bool = False, reference: str = ""
    ) -> Callable[[F], F]:
        """Register the decorated function under ``names`` (several names are aliases of one implementation).

        The same source again is a no-op, because Ray imports a module once more in each worker.
        Raises ``DuplicateAlgorithmError`` for any other second claim on a name.
        """

        def decorate(function: F) -> F:
            for name in names:
                self._add(Entry(name, function, frozenset(needs), outcome, reference))
            return function

        return decorate

    def _add(self, entry: Entry[F]) -> None:
        known = self._entries.setdefault(entry.name, entry)
        if known.source != entry.source:
            raise DuplicateAlgorithmError(
                f"{self.kind} {entry.name!r} is already {'.'.join(known.source)}; "
                f"register {'.'.join(entry.source)} under another name"
            )

    def get(self, name: str) -> Entry[F]:
        """The entry of ``name``. Raises ``UnknownAlgorithmError`` with the nearest known names."""
        if name not in self._entries:
            near = difflib.get_close_matches(name, self.names(), n=3) or self.names()
            raise UnknownAlgorithmError(f"unknown {self.kind} {name!r}; did you mean {' or '.join(map(repr, near))}?")
        return self._entries[name]

    def names(self) -> tuple[str, ...]:
        """All registered names, sorted."""
        return tuple(sorted(self._entries))
