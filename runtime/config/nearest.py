"""The known key that a mistyped one most likely meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher


def _likeness(left: str, right: str) -> float:
    return SequenceMatcher(None, left, right, autojunk=False).ratio()


def nearest_key(key: str, candidates: Iterable[str]) -> tuple[str, float]:
    """The candidate most like ``key`` and how alike they are, 0 to 1.

    The whole dotted key and its last name count alike, so that both a slip of a letter and a right name in the wrong
    group are found. Ties go to the first in alphabetical order.
    """
    leaf = key.rpartition(".")[2]
    leaf_scores: dict[str, float] = {}

    def score(candidate: str) -> float:
        other = candidate.rpartition(".")[2]
        if other not in leaf_scores:
            leaf_scores[other] = _likeness(leaf, other)
        return (_likeness(key, candidate) + leaf_scores[other]) / 2

    best = max(sorted(candidates), key=score)
    return best, score(best)
