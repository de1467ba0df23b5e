"""Jagged batches as V1's advantage stage and its actor get them: one value a response token, rows of groups of four."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from compat.jagged import jagged
from shared_algos.segments import Segments

GROUP = 4


@dataclass(frozen=True)
class Case:
    """The size of a batch."""

    rows: int
    """A multiple of ``GROUP``."""
    width: int
    """Tokens of the longest response, which is there, so that padding needs a rectangle of ``[rows, width]``."""
    fill: float
    """The share of that rectangle that is tokens."""


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch in the layout that both sides are given."""

    segments: Segments
    columns: dict[str, Tensor]
    """``[rows, j]`` each, on one offsets tensor: rm_scores, response_mask (int64), values, old_log_probs, log_probs,
    advantages."""
    groups: Tensor
    """int64 ``[rows]``"""


def draw(case: Case, device: str, seed: int = 0) -> Batch:
    """Lengths are uniform around ``fill * width``, as wide as fits; a reward stands on each row's last token."""
    random = torch.Generator().manual_seed(seed)
    highest = min(1.0, 2 * case.fill)
    lowest = 2 * case.fill - highest
    shares = lowest + (highest - lowest) * torch.rand(case.rows, generator=random)
    lengths = (shares * case.width).long().clamp(1, case.width)
    lengths[0] = case.width
    segments = Segments.from_lengths(lengths)
    tokens = segments.num_tokens
    rewards = torch.zeros(tokens)
    rewards[segments.offsets[1:] - 1] = torch.rand(case.rows, generator=random)
    old_log_probs = -torch.rand(tokens, generator=random)
    columns = {
        "rm_scores": rewards,
        "response_mask": torch.ones(tokens, dtype=torch.int64),
        "values": torch.randn(tokens, generator=random),
        "old_log_probs": old_log_probs,
        "log_probs": old_log_probs + 0.2 * torch.randn(tokens, generator=random),
        "advantages": torch.randn(tokens, generator=random),
    }
    there = Segments(segments.offsets.to(device))
    jagged_columns = {name: jagged(column.to(device), there) for name, column in columns.items()}
    return Batch(there, jagged_columns, torch.arange(case.rows, device=device) // GROUP)
