"""How many values differ by how much, in bins that are the same for every field, so that columns and steps add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BINS_PER_DECADE = 2
LOWEST, HIGHEST = -40, 19
"""First and last bin, 1e-20 and 3e9: values of float32 near 1 are at least 6e-8 apart, those near 1e-12 6e-20."""


@dataclass(frozen=True)
class Histogram:
    """Counts of absolute differences.

    counts: one a bin from LOWEST to HIGHEST; bin b holds ``[10 ** (b / 2), 10 ** ((b + 1) / 2))``, the first also what
    is smaller, the last what is larger. zero: values of other bits that are no distance apart, ``-0.0`` and ``0.0``.
    infinite: a NaN or an infinity that faces another value.
    """

    counts: tuple[int, ...]
    zero: int = 0
    infinite: int = 0

    def __add__(self, other: Histogram) -> Histogram:
        counts = tuple(mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True))
        return Histogram(counts, self.zero + other.zero, self.infinite + other.infinite)

    @property
    def total(self) -> int:
        """All values that differ."""
        return sum(self.counts) + self.zero + self.infinite

    @property
    def bins(self) -> range:
        """The bins from the first to the last that is not empty."""
        filled = [place for place, count in enumerate(self.counts) if count]
        return range(LOWEST + filled[0], LOWEST + filled[-1] + 1) if filled else range(0)

    def count(self, number: int) -> int:
        """How many values bin ``number`` holds."""
        return self.counts[number - LOWEST]

    def as_json(self) -> dict[str, Any]:
        """The filled stretch of bins: ``counts[i]`` belongs to bin ``first + i``."""
        first = self.bins.start if self.bins else None
        return {
            "first": first,
            "counts": [self.count(number) for number in self.bins],
            "zero": self.zero,
            "infinite": self.infinite,
        }


def histogram(gaps: Tensor) -> Histogram:
    """Count absolute differences, float64 ``[N]``, none of them NaN."""
    finite = gaps[(gaps > 0) & gaps.isfinite()]
    bins = (finite.log10() * BINS_PER_DECADE).floor().clamp(LOWEST, HIGHEST).long()
    counts = torch.bincount(bins - LOWEST, minlength=HIGHEST - LOWEST + 1)
    return Histogram(tuple(counts.tolist()), zero=int((gaps == 0).sum()), infinite=int(gaps.isinf().sum()))
