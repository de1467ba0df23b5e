"""Dynamic sampling: which prompt groups of a rollout are worth a training step (DAPO, arXiv:2503.14476)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

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
        return ("response_mask", "rm_scores" if self.metric in REWARD_METRICS else _SCORES)

    def kept_rows(self, batch: TrajectoryBatch) -> list[int]:
        """The rows whose group is kept, in order. ``RewardError`` names a trajectory without the metric.

        As in the estimators, a session counts once, by its last output that has a mask-1 token; a group in which no
        session has one is dropped.
        """
        rows = _speaking_rows(batch)
        spread = groups_with_spread(self._values(batch, rows), batch.groups[torch.tensor(rows, dtype=torch.int64)])
        kept = {batch.keys[row].uid for row, keep in zip(rows, spread.tolist(), strict=True) if keep}
        return [row for row, key in enumerate(batch.keys) if key.uid in kept]

    def _values(self, batch: TrajectoryBatch, rows: Sequence[int]) -> Tensor:
        if self.metric in REWARD_METRICS:
            return batch.responses.sum(batch["rm_scores"])[list(rows)]
        scores = [reward_part(batch.objects[_SCORES][row], self.metric, str(batch.keys[row])) for row in rows]
        return torch.tensor(scores, dtype=torch.float64)


def _speaking_rows(batch: TrajectoryBatch) -> list[int]:
    """The last row of each session that has a mask-1 token."""
    alive = batch.responses.sum(batch["response_mask"].bool()) > 0
    last: dict[tuple[str, int], int] = {}
    for row, key in enumerate(batch.keys):
        session = (key.uid, key.session_id)
        if alive[row] and (session not in last or key.index > batch.keys[last[session]].index):
            last[session] = row
    return sorted(last.values())


def reward_part(scores: Any, name: str, trajectory: str) -> float:
    """The score ``name`` of what a reward function returned beside the total.

    Raises ``RewardError`` naming the trajectory where it is not there or is no number.
    """
    there = sorted(scores) if isinstance(scores, Mapping) else []
    if name not in there:
        raise RewardError(
            f"the reward function returned no {name!r} for trajectory {trajectory}, only {there}; let it return a dict "
            "with that key, or name another one in the config"
        )
    value = scores[name]
    if isinstance(value, str) or not isinstance(value, SupportsFloat):
        raise RewardError(
            f"the reward function returned {name}={value!r} for trajectory {trajectory}; it must be a number"
        )
    return float(value)
