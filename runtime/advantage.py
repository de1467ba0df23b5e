"""The advantage stage: what both trainers compute once log-probs, values and scores are there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from omegaconf import DictConfig
from torch import Tensor

from runtime.algorithms import advantage_config, rollout_correction_config
from runtime.config import bypasses_old_log_prob
from runtime.errors import ConfigError, RewardError
from runtime.group_filter import reward_part
from runtime.trajectories import TrajectoryBatch
from shared_algos.advantages import ADVANTAGES, AdvantageConfig, AdvantageInputs, compute_advantages
from shared_algos.errors import NonFiniteError
from shared_algos.kl import apply_kl_penalty
from shared_algos.rollout_correction import Correction, RolloutCorrectionConfig, correct

_OPTIONAL_INPUTS = {"values", "old_log_probs", "sum_pi_squared", "reward_baselines"}
_COMPONENTS = "reward_extra_info"
"""The dataset object that holds what a reward function returned beside the score, a dict a row."""


@dataclass(frozen=True)
class AdvantageStage:
    """Token-level rewards, advantages and returns of a whole batch, by the estimator that the config names."""

    estimator: str
    settings: AdvantageConfig
    kl_in_reward: bool
    kl_penalty: str
    correction: RolloutCorrectionConfig | None
    """How the rollout policy is corrected for; ``None`` where its log-probs are not there or are the old ones."""
    component_keys: tuple[str, ...]
    """Names of the scores that GDPO weighs."""

    @classmethod
    def from_config(cls, config: DictConfig) -> AdvantageStage:
        algorithm = config.algorithm
        corrected = config.actor_rollout_ref.rollout.calculate_log_probs and not bypasses_old_log_prob(config)
        return cls(
            estimator=algorithm.adv_estimator,
            settings=advantage_config(config),
            kl_in_reward=algorithm.use_kl_in_reward,
            kl_penalty=algorithm.kl_penalty,
            correction=rollout_correction_config(config) if corrected else None,
            component_keys=tuple(algorithm.gdpo_reward_keys or ()),
        )

    def reads(self, there: Collection[str]) -> tuple[str, ...]:
        """The fields that the batch must hold. there: those that it does hold.

        Raises ConfigError where a correction is configured and agent loops returned no log-probs.
        """
        needs = ADVANTAGES.get(self.estimator).needs
        optional = _OPTIONAL_INPUTS & needs
        if self.kl_in_reward:
            optional |= {"old_log_probs", "ref_log_prob"}
        if self.correction is not None and "rollout_log_probs" in there:
            optional |= {"old_log_probs", "rollout_log_probs"}
        elif self.correction is not None and (self.correction.rollout_is or self.correction.rollout_rs):
            raise ConfigError(
                "algorithm.rollout_correction needs rollout_log_probs, which the agent loops did not return; "
                "let them fill AgentLoopOutput.response_logprobs, or set rollout_is and rollout_rs to null"
            )
        if "reward_components" in needs:
            if _COMPONENTS not in there:
                raise RewardError(
                    f"algorithm.adv_estimator={self.estimator} weighs scores that the reward function returns beside "
                    "the total (algorithm.gdpo_reward_keys), and no trajectory has any; let it return a dict"
                )
            optional |= {_COMPONENTS}
        return ("response_mask", "token_level_scores", *sorted(optional))

    def __call__(self, batch: TrajectoryBatch, kl_coef: float) -> tuple[dict[str, Tensor], dict[str, float]]:
        """The columns that the stage writes, and its scalars: KL in the reward, and how far rollout was off.

        kl_coef: the coefficient now; its controller stays with the trainer.
        """
        rewards, scalars = self._rewards(batch, kl_coef)
        columns = {"token_level_rewards": rewards, "response_mask": batch["response_mask"]}
        if self.correction is not None and "rollout_log_probs" in batch:
            corrected = self._correct(batch, self.correction)
            scalars |= corrected.metrics
            columns["response_mask"] = corrected.response_mask
            # The KL of a rejected token goes with it; its score, which may be the outcome, stays.
            kept = corrected.response_mask == batch["response_mask"]
            columns["token_level_rewards"] = torch.where(kept, rewards, batch["token_level_scores"])
            if corrected.weights is not None:
                columns["rollout_is_weights"] = corrected.weights
        outputs = compute_advantages(self.estimator, self._inputs(batch.with_columns(columns)), self.settings)
        return {**columns, "advantages": outputs.advantages, "returns": outputs.returns}, scalars

    def _correct(self, batch: TrajectoryBatch, correction: RolloutCorrectionConfig) -> Correction:
        mask = batch["response_mask"]
        try:
            return correct(batch["old_log_probs"], batch["rollout_log_probs"], mask, batch.responses, correction)
        except NonFiniteError:
            if correction.rollout_is or correction.rollout_rs:
                raise
            # Nothing but the figures would have come of it.
            return Correction(None, mask, {})

    def _rewards(self, batch: TrajectoryBatch, kl_coef: float) -> tuple[Tensor, dict[str, float]]:
        if not self.kl_in_reward:
            return batch["token_level_scores"], {}
        rewards, kl = apply_kl_penalty(
            batch["token_level_scores"],
            batch["old_log_probs"],
            batch["ref_log_prob"],
            batch["response_mask"],
            batch.responses,
            kl_coef,
            self.kl_penalty,
        )
        return rewards, {"actor/reward_kl_penalty": float(kl), "actor/reward_kl_penalty_coeff": kl_coef}

    def _inputs(self, batch: TrajectoryBatch) -> AdvantageInputs:
        optional = (*_OPTIONAL_INPUTS, "rollout_is_weights")
        return AdvantageInputs(
            token_level_rewards=batch["token_level_rewards"],
            response_mask=batch["response_mask"],
            segments=batch.responses,
            groups=batch.groups,
            sessions=torch.tensor([key.session_id for key in batch.keys], dtype=torch.int64),
            indices=torch.tensor([key.index for key in batch.keys], dtype=torch.int64),
            keys=[str(key) for key in batch.keys],
            reward_components=_components(batch, self.component_keys) if _COMPONENTS in batch.objects else None,
            **{name: batch[name] for name in optional if name in batch},
        )


def _components(batch: TrajectoryBatch, names: Sequence[str]) -> Tensor:
    """The scores ``names`` of each row, float64 ``[B, K]``. ``RewardError`` names a row that lacks one of them."""
    rows = [
        [reward_part(scores, name, str(key)) for name in names]
        for key, scores in zip(batch.keys, batch.objects[_COMPONENTS], strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(names))
