"""The reward stage: what both trainers do once every response is there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor

from runtime.arrays import object_array
from runtime.data.chat import load_tokenizer
from runtime.errors import RewardError
from runtime.reward.batch import BatchRewardManager, BatchRewards, shared_by_sessions
from runtime.reward.registry import build_batch_manager, scores_batches
from runtime.trajectories import TrajectoryBatch, last_outputs

_SCORES = "rm_scores"


@dataclass(frozen=True)
class Rewarded:
    """columns: packed ``[T]``. objects: ``[B]`` object arrays."""

    columns: Mapping[str, Tensor]
    objects: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class RewardStage:
    """``rm_scores`` checked and filed as ``token_level_scores``.

    manager: makes them here where it scores whole batches; ``None``: rollout made them, session by session.
    """

    manager: BatchRewardManager | None

    @classmethod
    def from_config(cls, config: DictConfig) -> RewardStage:
        """The stage that the config asks for; what scores whole batches is built in this process."""
        if not scores_batches(config):
            return cls(None)
        return cls(build_batch_manager(config, load_tokenizer(config.actor_rollout_ref.model)))

    def reads(self, there: Collection[str]) -> tuple[str, ...]:
        """The fields that the batch must hold. there: those that it does hold; scores of an agent loop stay."""
        return (_SCORES,) if self.manager is None or _SCORES in there else self.manager.reads(there)

    def __call__(self, batch: TrajectoryBatch) -> Rewarded:
        """What the stage writes; RewardError names a trajectory with a NaN or infinite score."""
        if _SCORES in batch or self.manager is None:
            scores, objects = batch[_SCORES], {}
        else:
            rows = last_outputs(batch)
            rewards = self.manager.score(batch.select(rows))
            scores = shared_by_sessions(rewards.scores, batch, rows)
            objects = {"reward_extra_info": _extra_info(rewards, batch, rows)}
        bad = (~torch.isfinite(scores)).nonzero()
        if len(bad):
            row = int(batch.responses.rows[bad[0, 0]])
            raise RewardError(f"rm_scores of trajectory {batch.keys[row]} hold {float(scores[bad[0, 0]])}")
        return Rewarded({_SCORES: scores, "token_level_scores": scores}, objects)


def _extra_info(rewards: BatchRewards, batch: TrajectoryBatch, rows: Tensor) -> np.ndarray:
    sessions = [(batch.keys[row].uid, batch.keys[row].session_id) for row in rows.tolist()]
    infos = dict(zip(sessions, rewards.extra_info, strict=True))
    return object_array([infos[key.uid, key.session_id] for key in batch.keys])
