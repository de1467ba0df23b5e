"""Row order that spreads tokens evenly over ranks without changing which mini-batch a row belongs to."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.errors import BatchSizeError


def balanced_order(lengths: Sequence[int], mini_batch_rows: int, world_size: int) -> Tensor:
    """A row order int64 ``[B]`` that balances tokens over ranks inside each mini-batch.

    lengths: tokens of each row ``[B]``. Rows stay in their mini-batch of ``mini_batch_rows``; within it, the
    ``world_size`` equal contiguous pieces get near-equal token totals, and a piece keeps its rows in their order.
    Longest rows go first, each to the piece with the fewest tokens that still has room; ties go to the lower piece.
    """
    if len(lengths) % mini_batch_rows or mini_batch_rows % world_size:
        raise BatchSizeError(
            f"{len(lengths)} rows, mini-batches of {mini_batch_rows} and {world_size} ranks: "
            "each must divide the one before"
        )
    order: list[int] = []
    for start in range(0, len(lengths), mini_batch_rows):
        order += _balanced_pieces(range(start, start + mini_batch_rows), lengths, world_size)
    return torch.tensor(order, dtype=torch.int64)


def _balanced_pieces(rows: range, lengths: Sequence[int], pieces: int) -> list[int]:
    room = len(rows) // pieces
    filled: list[list[int]] = [[] for _ in range(pieces)]
    lightest = [(0, piece) for piece in range(pieces)]
    for row in sorted(rows, key=lambda row: (-lengths[row], row)):
        tokens, piece = heapq.heappop(lightest)
        filled[piece].append(row)
        if len(filled[piece]) < room:
            heapq.heappush(lightest, (tokens + lengths[row], piece))
    return [row for piece in filled for row in sorted(piece)]
