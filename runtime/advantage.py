"""The advantage stage: what both trainers compute once log-probs, values and scores are there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from omegaconf import DictConfig
from torch import Tensor

from runtime.trajectories import TrajectoryBatch
from shared_algos.advantages import ADVANTAGES, AdvantageConfig, AdvantageInputs, compute_advantages
from shared_algos.kl import apply_kl_penalty


@dataclass(frozen=True)
class AdvantageStage:
    """Token-level rewards, advantages and returns of a whole batch, by the estimator that the config names."""

    estimator: str
    settings: AdvantageConfig
    kl_in_reward: bool
    kl_penalty: str

    @classmethod
    def from_config(cls, config: DictConfig) -> AdvantageStage:
        algorithm = config.algorithm
        return cls(
            estimator=algorithm.adv_estimator,
            settings=AdvantageConfig(
                gamma=algorithm.gamma,
                lam=algorithm.lam,
                norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
            ),
            kl_in_reward=algorithm.use_kl_in_reward,
            kl_penalty=algorithm.kl_penalty,
        )

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields that the batch must hold."""
        optional = {"values", "old_log_probs"} & ADVANTAGES.get(self.estimator).needs
        if self.kl_in_reward:
            optional |= {"old_log_probs", "ref_log_prob"}
        return ("response_mask", "token_level_scores", *sorted(optional))

    def __call__(self, batch: TrajectoryBatch, kl_coef: float) -> tuple[dict[str, Tensor], dict[str, float]]:
        """The columns that the stage writes, and its scalars (the KL in the reward, when there is one).

        kl_coef: the coefficient now; its controller stays with the trainer.
        """
        rewards, scalars = batch["token_level_scores"], {}
        if self.kl_in_reward:
            rewards, kl = apply_kl_penalty(
                rewards,
                batch["old_log_probs"],
                batch["ref_log_prob"],
                batch["response_mask"],
                batch.responses,
                kl_coef,
                self.kl_penalty,
            )
            scalars = {"actor/reward_kl_penalty": float(kl), "actor/reward_kl_penalty_coeff": kl_coef}
        outputs = compute_advantages(self.estimator, self._inputs(batch, rewards), self.settings)
        columns: Mapping[str, Tensor] = {
            "token_level_rewards": rewards,
            "advantages": outputs.advantages,
            "returns": outputs.returns,
            "response_mask": batch["response_mask"],
        }
        return dict(columns), scalars

    def _inputs(self, batch: TrajectoryBatch, rewards: Tensor) -> AdvantageInputs:
        return AdvantageInputs(
            token_level_rewards=rewards,
            response_mask=batch["response_mask"],
            segments=batch.responses,
            groups=batch.groups,
            sessions=torch.tensor([key.session_id for key in batch.keys], dtype=torch.int64),
            indices=torch.tensor([key.index for key in batch.keys], dtype=torch.int64),
            values=batch.columns.get("values"),
            old_log_probs=batch.columns.get("old_log_probs"),
            keys=[str(key) for key in batch.keys],
        )
