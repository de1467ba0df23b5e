"""The largest differencing method of Karmarkar and Karp (1982) for several parts."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Part = tuple[int, tuple[tuple[int, int], ...]]
"""A sum, and the (row, length) pairs that make it, in the order they joined."""


@dataclass(frozen=True)
class Bundle:
    """Parts, the heaviest first; some may be empty."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int]], count: int) -> Bundle:
        """A bundle of ``count`` parts with one of ``rows`` in each of the first."""
        parts = [(length, ((row, length),)) for row, length in rows] + [(0, ())] * (count - len(rows))
        return cls(_heaviest_first(parts))

    @property
    def spread(self) -> int:
        return self.parts[0][0] - self.parts[-1][0]

    def joined(self, other: Bundle) -> Bundle:
        """Heaviest with lightest, so that differences cancel."""
        pairs = zip(self.parts, reversed(other.parts), strict=True)
        return Bundle(_heaviest_first((mine[0] + theirs[0], mine[1] + theirs[1]) for mine, theirs in pairs))

    def __lt__(self, other: Bundle) -> bool:
        """The one with the largest spread goes first, among equals the one with the heaviest part."""
        return (self.spread, _weight(self.parts[0])) > (other.spread, _weight(other.parts[0]))

    def rows(self) -> list[list[int]]:
        """Row numbers of each part."""
        return [[row for row, _ in items] for _, items in self.parts]


def _weight(part: Part) -> tuple[int, int, tuple[tuple[int, int], ...]]:
    """Parts of one sum are told apart by how many rows they have, then by their rows: no order is left to chance."""
    return part[0], len(part[1]), part[1]


def _heaviest_first(parts: Iterable[Part]) -> tuple[Part, ...]:
    return tuple(sorted(parts, key=_weight, reverse=True))


def largest_differences(bundles: list[Bundle]) -> Bundle:
    """Join the two bundles of the largest spread until one is left."""
    heapq.heapify(bundles)
    while len(bundles) > 1:
        first, second = heapq.heappop(bundles), heapq.heappop(bundles)
        heapq.heappush(bundles, first.joined(second))
    return bundles[0]
