"""Advantages on jagged columns, against verl 0.9.1's way of doing it in V1: pad, compute, cut back.

Needs ``make oracle``. Each pair runs interleaved on the same batch; the ratio is of the medians.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from compat.padding import pack_right_padded, pad_right
from shared_algos.advantages import AdvantageConfig, AdvantageInputs, compute_advantages
from shared_algos.segments import Segments

ORACLE = Path(__file__).resolve().parent.parent / ".oracle"
REPEATS = 5


@dataclass(frozen=True)
class Batch:
    """Ragged responses of groups of four: rewards, mask and values packed ``[T]``."""

    segments: Segments
    rewards: Tensor
    mask: Tensor
    values: Tensor
    width: int

    @classmethod
    def draw(cls, rows: int, width: int, fill: float, seed: int = 0) -> Batch:
        """rows: a multiple of 4. fill: the share of the padded rectangle ``[rows, width]`` that is tokens."""
        generator = torch.Generator().manual_seed(seed)
        longest = max(1, int(2 * fill * width))
        lengths = torch.randint(1, longest + 1, (rows,), generator=generator).clamp(max=width)
        segments = Segments.from_lengths(lengths)
        rewards = torch.zeros(segments.num_tokens)
        rewards[segments.offsets[1:] - 1] = torch.rand(rows, generator=generator)
        values = torch.randn(segments.num_tokens, generator=generator)
        return cls(segments, rewards, torch.ones_like(rewards), values, width)

    @property
    def groups(self) -> Tensor:
        return torch.arange(self.segments.num_rows) // 4


def ours(name: str, batch: Batch) -> Tensor:
    rows = torch.arange(batch.segments.num_rows)
    inputs = AdvantageInputs(
        token_level_rewards=batch.rewards,
        response_mask=batch.mask,
        segments=batch.segments,
        groups=batch.groups,
        sessions=rows % 4,
        indices=torch.zeros_like(rows),
        values=batch.values,
    )
    return compute_advantages(name, inputs, AdvantageConfig()).advantages


def verls(name: str, batch: Batch) -> Tensor:
    from verl.trainer.ppo import core_algos

    def padded(values: Tensor) -> Tensor:
        return pad_right(values, batch.segments, batch.width)

    rewards, mask = padded(batch.rewards), padded(batch.mask)
    if name == "grpo":
        index = np.array([str(group) for group in batch.groups.tolist()], dtype=object)
        advantages, _ = core_algos.compute_grpo_outcome_advantage(rewards, mask, index)
    else:
        advantages, _ = core_algos.compute_gae_advantage_return(rewards, padded(batch.values), mask, 1.0, 1.0)
    return pack_right_padded(advantages, batch.segments.lengths)


def compare(name: str, batch: Batch) -> tuple[float, float, float]:
    """Median milliseconds of ours and of verl's, and the largest difference of their results."""
    times: dict[Callable[[str, Batch], Tensor], list[float]] = {ours: [], verls: []}
    results = {}
    for _ in range(REPEATS):
        for function, taken in times.items():
            started = time.perf_counter()
            results[function] = function(name, batch)
            taken.append(1000 * (time.perf_counter() - started))
    difference = float((results[ours] - results[verls]).abs().max())
    return statistics.median(times[ours]), statistics.median(times[verls]), difference


def main() -> None:
    """Print one row a case."""
    if not ORACLE.is_dir():
        sys.exit("verl 0.9.1 is not here; run `make oracle` first")
    sys.path.insert(0, str(ORACLE))
    table = Table("estimator", "rows", "width", "tokens", "ours ms", "verl ms", "verl / ours", "largest difference")
    for rows, width, fill in ((256, 2048, 0.5), (1024, 8192, 0.16)):
        batch = Batch.draw(rows, width, fill)
        for name in ("grpo", "gae"):
            mine, theirs, difference = compare(name, batch)
            figures = f"{mine:.1f}", f"{theirs:.1f}", f"{theirs / mine:.1f}", f"{difference:.1e}"
            table.add_row(name, str(rows), str(width), str(batch.segments.num_tokens), *figures)
    Console().print(table)


if __name__ == "__main__":
    main()
