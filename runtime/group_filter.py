"""Dynamic sampling: which prompt groups of a rollout are worth a training step (DAPO, arXiv:2503.14476)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from omegaconf import DictConfig
from torch import Tensor

from runtime.errors import RewardError
from runtime.trajectories import TrajectoryBatch
from shared_algos.group_filter import groups_with_spread

REWARD_METRICS = ("reward", "seq_reward", "seq_final_reward")
"""Names of the reward of a trajectory; any other metric is a score that the reward function returned beside it."""

_SCORES = "reward_extra_info"


@dataclass(frozen=True)
class GroupFilter:
    """``algorithm.filter_groups``: groups whose trajectories all have the same metric are dropped."""

    metric: str
    max_batches: int
    """Rollouts of one step at most; no limit where it is not positive."""

    @classmethod
    def from_config(cls, config: DictConfig) -> GroupFilter | None:
        """The filter that the config asks for, ``None`` when it is off."""
        settings = config.algorithm.filter_groups
        return cls(settings.metric, settings.max_num_gen_batches) if settings.enable else None

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields that ``kept_rows`` needs."""
        return ("rm_scores",) if self.metric in REWARD_METRICS else (_SCORES,)

    def kept_rows(self, batch: TrajectoryBatch) -> list[int]:
        """The rows whose group is kept, in order. ``RewardError`` names a trajectory without the metric."""
        return groups_with_spread(self._values(batch), batch.groups).nonzero().squeeze(1).tolist()

    def _values(self, batch: TrajectoryBatch) -> Tensor:
        if self.metric in REWARD_METRICS:
            return batch.responses.sum(batch["rm_scores"])
        values = []
        for key, scores in zip(batch.keys, batch.objects[_SCORES], strict=True):
            if self.metric not in (scores or {}):
                raise RewardError(
                    f"the reward function returned no {self.metric!r} for trajectory {key}, only "
                    f"{sorted(scores or {})}; set algorithm.filter_groups.metric to one of them, or to reward"
                )
            values.append(float(scores[self.metric]))
        return torch.tensor(values, dtype=torch.float64)
