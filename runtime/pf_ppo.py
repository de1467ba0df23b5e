"""PF-PPO: the trajectories of a step are drawn anew before the updates (arXiv:2409.06957)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from omegaconf import DictConfig

from runtime.identity import mixed_seed
from runtime.trajectories import TrajectoryBatch
from shared_algos.pf_ppo import resample


@dataclass(frozen=True)
class Resampling:
    """``algorithm.pf_ppo``: how likely a trajectory is to be drawn."""

    method: str
    weight_pow: float
    seed: int

    reads: ClassVar[tuple[str, ...]] = ("token_level_scores", "response_mask")
    """The fields that ``drawn_rows`` needs."""

    @classmethod
    def from_config(cls, config: DictConfig) -> Resampling:
        settings = config.algorithm.pf_ppo
        return cls(settings.reweight_method, settings.weight_pow, config.runtime.seed)

    def drawn_rows(self, batch: TrajectoryBatch, step: int) -> list[int]:
        """The row that each place of the new batch is filled with, by the rows' scores before any KL penalty.

        batch: in canonical order, so that the draw of a step is the same in both trainers and on any number of ranks.
        Rows that are masked as a whole stay where they are.
        """
        scores = batch.responses.sum(batch["token_level_scores"])
        alive = batch.responses.sum(batch["response_mask"].bool()) > 0
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, step))
        return resample(scores, self.method, self.weight_pow, generator, alive).tolist()
