"""How the rows of a mini-batch are split into micro-batches, by count or by tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class RowLimit:
    """Micro-batches of at most ``rows`` rows, in row order; ``None``: all rows in one."""

    rows: int | None

    def split(self, lengths: Sequence[int]) -> list[list[int]]:
        """Row numbers of each micro-batch for rows of ``lengths [B]`` tokens."""
        size = self.rows or max(1, len(lengths))
        return [list(range(start, min(start + size, len(lengths)))) for start in range(0, len(lengths), size)]


@dataclass(frozen=True)
class TokenLimit:
    """Micro-batches of at most ``tokens`` tokens; a longer row is a micro-batch of its own."""

    tokens: int

    def split(self, lengths: Sequence[int]) -> list[list[int]]:
        """Row numbers of each micro-batch for rows of ``lengths [B]`` tokens.

        First fit, longest row first, ties by row number, so that equal lengths always give equal micro-batches. Rows
        inside one, and micro-batches by their first row, are in row order.
        """
        rows_of: list[list[int]] = []
        tokens_of: list[int] = []
        for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
            place = next((i for i, used in enumerate(tokens_of) if used + lengths[row] <= self.tokens), len(rows_of))
            if place == len(rows_of):
                rows_of.append([])
                tokens_of.append(0)
            rows_of[place].append(row)
            tokens_of[place] += lengths[row]
        return sorted(sorted(rows) for rows in rows_of)


MicroBatchLimit = RowLimit | TokenLimit

WHOLE = RowLimit(None)


def same_count_on_all_ranks(micro_batches: list[list[int]], device: torch.device) -> list[list[int]]:
    """Append empty micro-batches until every rank has as many: FSDP's forward and backward are collective calls."""
    count = torch.tensor(len(micro_batches), device=device)
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    return micro_batches + [[] for _ in range(int(count) - len(micro_batches))]
