"""The rows of a mini-batch from all ranks, for losses that look at it as a whole before it is split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from runtime.identity import TrajectoryKey
from shared_algos.segments import Segments


@dataclass(frozen=True, eq=False)
class MiniBatchRows:
    """All M rows of a mini-batch, in the order of their keys: neither ranks nor balancing show in it."""

    segments: Segments
    """M rows in T tokens."""
    columns: Mapping[str, Tensor]
    """``[T]`` each."""
    own: Tensor
    """int64: where the tokens of this rank's rows lie in T, in this rank's own row order."""


def gather_rows(
    keys: tuple[TrajectoryKey, ...], segments: Segments, columns: Mapping[str, Tensor], device: torch.device
) -> MiniBatchRows:
    """Bring the rows of every rank together on every rank, on the CPU; collective.

    keys, segments, columns: this rank's rows; columns ``[t]`` have the same names and types on all ranks.
    device: where the process group exchanges tensors.
    """
    shares: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shares, (keys, segments.lengths.tolist()))
    counts = [sum(lengths) for _, lengths in shares]
    together = Segments.from_lengths([length for _, lengths in shares for length in lengths])
    all_keys = [key for keys_of_rank, _ in shares for key in keys_of_rank]
    order = torch.tensor(sorted(range(len(all_keys)), key=all_keys.__getitem__), dtype=torch.int64)
    tokens = together.token_indices(order)
    begin = sum(counts[: dist.get_rank()])
    return MiniBatchRows(
        Segments.from_lengths(together.lengths[order]),
        {name: _gather_tokens(column.to(device), counts).cpu()[tokens] for name, column in columns.items()},
        tokens.argsort()[begin : begin + segments.num_tokens],
    )


def _gather_tokens(column: Tensor, counts: list[int]) -> Tensor:
    """``column [t]`` of every rank, one after another; a collective needs equal sizes, so each is filled up."""
    filled = column.new_zeros(max(counts))
    filled[: column.numel()] = column
    gathered = [torch.empty_like(filled) for _ in counts]
    dist.all_gather(gathered, filled)
    return torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)])
