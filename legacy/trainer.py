"""The legacy trainer: one padded ``DataProto`` in the driver, onto which every stage unions its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from compat.protocol import DataProto
from compat.rows import answer, column_names, keys_of, read_batch
from compat.single_controller.pools import ResourcePoolManager
from compat.single_controller.ray_worker_group import RayWorkerGroup
from compat.single_controller.roles import Role
from legacy.agent_loop import AgentLoopManager, AgentLoopWorker
from legacy.groups import CheckpointManager, ModelGroups, default_pools, default_workers
from runtime.advantage import AdvantageStage
from runtime.agent_loop import Submission
from runtime.agent_loop.runner import session_params, sessions_each
from runtime.arrays import object_array
from runtime.balance import balanced_order
from runtime.config import bypasses_old_log_prob
from runtime.errors import ConfigError
from runtime.generations import Generations
from runtime.group_filter import GroupFilter
from runtime.identity import TrajectoryKey
from runtime.metrics import batch_metrics
from runtime.pf_ppo import Resampling
from runtime.reward import RewardStage
from runtime.trainer.base import Series, Trainer
from runtime.trainer.hooks import StageHook, StageRecord
from runtime.trainer.stages import written_fields
from runtime.trainer.workers import Workers


class LegacyTrainer(Trainer):
    """The trainer that drives worker groups with one ``DataProto``.

    role_worker_mapping, resource_pool_manager, ray_worker_group_cls: as in verl's ``RayPPOTrainer``, which
    ``legacy.ray_trainer`` makes of this class.
    """

    role_worker_mapping: Mapping[Role, Any]
    resource_pool_manager: ResourcePoolManager
    ray_worker_group_cls: type[RayWorkerGroup] = RayWorkerGroup

    def __init__(self, config: DictConfig, hooks: Sequence[StageHook] = ()) -> None:
        self.role_worker_mapping = default_workers(config)
        self.resource_pool_manager = default_pools(config, self.role_worker_mapping)
        super().__init__(config, hooks)

    # Worker groups, whose methods are those of their workers; ``None`` before they are started, or for good.
    actor_rollout_wg: Any = None
    critic_wg: Any = None
    ref_policy_wg: Any = None
    rm_wg: Any = None

    def _start_workers(self) -> Workers:
        groups = ModelGroups.start(
            self.config, self.role_worker_mapping, self.resource_pool_manager, self.ray_worker_group_cls
        )
        try:
            self.actor_rollout_wg, self.critic_wg, self.ref_policy_wg = groups.actor, groups.critic, groups.reference
            self.rm_wg = groups.reward_model
            return groups.with_rollout(AgentLoopWorker, groups.load_models)
        except BaseException:
            groups.release()
            raise

    # Made when they are first asked for: a recipe that starts its groups itself gets them around those.

    @cached_property
    def reward_stage(self) -> RewardStage:
        """What the stage ``reward`` does."""
        return RewardStage.from_config(self.config)

    @cached_property
    def advantage_stage(self) -> AdvantageStage:
        """What the stage ``advantage`` does."""
        return AdvantageStage.from_config(self.config)

    @cached_property
    def async_rollout_manager(self) -> Any:
        """What plays sessions for the driver."""
        return AgentLoopManager(
            self.config, self.workers.policy_weights, self.scores_in_rollout, lambda: self.global_steps
        )

    @cached_property
    def checkpoint_manager(self) -> CheckpointManager:
        """What brings the policy's weights to the rollout server."""
        return CheckpointManager(self.workers.policy_weights)

    def play(self, prompts: list[Submission]) -> DataProto:
        return self.scored_for_filter(self._play(prompts, validate=False))

    def kept_rows(self, batch: DataProto, group_filter: GroupFilter) -> list[int]:
        return group_filter.kept_rows(read_batch(batch, group_filter.reads))

    def reward(self, batch: DataProto) -> tuple[DataProto, Series]:
        trajectories = read_batch(batch, self.reward_stage.reads(column_names(batch)))
        rewarded = self.reward_stage(trajectories)
        return batch.union(answer(batch, trajectories, rewarded.columns, rewarded.objects)), {}

    def balance(self, batch: DataProto) -> tuple[DataProto, Series]:
        lengths = batch["attention_mask"].sum(1).tolist()
        batch.reorder(balanced_order(lengths, self.mini_batch_rows("actor"), self.workers.world_size))
        return batch, {}

    def old_log_prob(self, batch: DataProto) -> tuple[DataProto, Series]:
        if bypasses_old_log_prob(self.config):
            return batch.union(DataProto.from_dict({"old_log_probs": batch["rollout_log_probs"]})), {}
        scored, _ = self._compute_old_log_prob(batch)
        scored.rename("entropys", "entropy")
        return batch.union(scored), {}

    def ref_log_prob(self, batch: DataProto) -> tuple[DataProto, Series]:
        return batch.union(self._compute_ref_log_prob(batch)), {}

    def values(self, batch: DataProto) -> tuple[DataProto, Series]:
        return batch.union(self._compute_values(batch)), {}

    def advantage(self, batch: DataProto) -> tuple[DataProto, Series]:
        trajectories = read_batch(batch, self.advantage_stage.reads(column_names(batch)))
        columns, scalars = self.advantage_stage(trajectories, self.kl_controller.value)
        self.update_kl(scalars, len(batch))
        # The one column that this stage may edit; a union would refuse the change.
        batch.pop(batch_keys=["response_mask"])
        return batch.union(answer(batch, trajectories, columns)), {name: [value] for name, value in scalars.items()}

    def drawn_rows(self, batch: DataProto, resampling: Resampling) -> list[int]:
        return resampling.drawn_rows(read_batch(batch, resampling.reads), self.global_steps)

    def update_critic(self, batch: DataProto) -> tuple[DataProto, Series]:
        return batch, self._update_critic(batch).meta_info["metrics"]

    def update_actor(self, batch: DataProto) -> tuple[DataProto, Series]:
        return batch, self._update_actor(batch).meta_info["metrics"]

    # verl's seams: a recipe overrides them, or calls them in a loop of its own.

    def _get_gen_batch(self, batch: DataProto) -> DataProto:
        """What rollout needs of P prompts."""
        return batch.select(batch_keys=["dummy_tensor"], non_tensor_batch_keys=["submission"])

    def _compute_old_log_prob(self, batch: DataProto) -> tuple[DataProto, float]:
        """``old_log_probs`` and ``entropys`` ``[B, R]``; and a share of peak FLOPs, which is not measured here: 0."""
        return self.actor_rollout_wg.compute_log_prob(batch), 0.0

    def _compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        """``ref_log_prob`` ``[B, R]``."""
        return self._reference().compute_ref_log_prob(batch)

    def _compute_values(self, batch: DataProto) -> DataProto:
        """``values`` ``[B, R]``."""
        return self._critic().compute_values(batch)

    def _update_critic(self, batch: DataProto) -> DataProto:
        """Metrics of each mini-batch in ``meta_info["metrics"]``."""
        batch.meta_info["global_steps"] = self.global_steps
        return self._critic().update_critic(batch)

    def _update_actor(self, batch: DataProto) -> DataProto:
        """Metrics of each mini-batch in ``meta_info["metrics"]``."""
        batch.meta_info["global_steps"] = self.global_steps
        return self.actor_rollout_wg.update_actor(batch)

    def _critic(self) -> Any:
        if self.critic_wg is None:
            raise ConfigError("this config runs no critic; set critic.enable=true or algorithm.adv_estimator=gae")
        return self.critic_wg

    def _reference(self) -> Any:
        if self.ref_policy_wg is None:
            raise ConfigError("no reference policy runs; set actor.use_kl_loss or algorithm.use_kl_in_reward")
        return self.ref_policy_wg

    # What the shared loop asks for.

    def batch_metrics(self, batch: DataProto) -> dict[str, float]:
        data = self.config.data
        return batch_metrics(read_batch(batch, self.metric_fields), data.max_response_length, data.max_prompt_length)

    def whole_batch(self, batch: DataProto) -> DataProto:
        return batch

    def generations(self, batch: DataProto) -> Generations:
        return Generations.of(read_batch(batch, Generations.reads(column_names(batch))), self.prompts.tokenizer)

    def validation_generations(self, prompts: list[Submission]) -> Generations:
        batch, _ = self.reward(self._play(prompts, validate=True))
        return self.generations(batch)

    def keys_of(self, batch: DataProto) -> list[TrajectoryKey]:
        return keys_of(batch)

    def record(self, batch: DataProto | None, stage: str, series: Series, digests: Mapping[str, str]) -> None:
        fields = written_fields(stage, self.config, () if batch is None else batch.non_tensor_batch)
        written = None
        if batch is not None and fields:
            written = read_batch(batch, fields).select(torch.tensor(self.canonical_places(batch)).argsort())
        figures = {name: tuple(values) for name, values in series.items()}
        for hook in self.hooks:
            hook(StageRecord(self.global_steps, stage, written, figures, dict(digests)))

    def _play(self, prompts: list[Submission], validate: bool) -> DataProto:
        n = sessions_each(self.config, validate)
        batch = _prompt_batch(prompts)
        # Of a shallow copy: verl's own seam takes columns out of what it is given.
        gen_batch = self._get_gen_batch(batch.slice(0, None))
        requests = _sessions(gen_batch.repeat(n, interleave=True), list(range(n)) * len(prompts))
        greedy = [session_id for session_id in session_params(self.config, validate) if session_id >= n]
        if greedy:
            # In the same call as the others: ReMax's baseline must not wait for them.
            requests = DataProto.concat([requests, _sessions(gen_batch, greedy * len(prompts))])
        requests.meta_info["validate"] = validate
        generated = self.async_rollout_manager.generate_sequences(requests)
        trained = n * len(prompts)
        batch.meta_info["validate"] = validate
        played = batch.repeat(n, interleave=True).union(generated.slice(0, trained))
        if greedy:
            scored, _ = self.reward(batch.union(generated.slice(trained, None)))
            baselines = scored["rm_scores"].sum(-1)
            played = played.union(DataProto.from_dict({"reward_baselines": baselines.repeat_interleave(n)}))
        return played


def _sessions(gen_batch: DataProto, session_ids: list[int]) -> DataProto:
    """``gen_batch`` with the session that each row is to play."""
    columns = {**gen_batch.non_tensor_batch, "session_id": np.array(session_ids, dtype=object)}
    return DataProto(gen_batch.batch, columns, dict(gen_batch.meta_info))


def _prompt_batch(prompts: list[Submission]) -> DataProto:
    """P prompts as a ``DataProto``: dataset columns, ``uid`` and the ``Submission`` itself, one object a row."""
    columns: dict[str, Any] = {
        name: object_array([submission.sample[name] for submission in prompts]) for name in prompts[0].sample
    }
    columns["uid"] = object_array([submission.uid for submission in prompts])
    columns["submission"] = object_array(prompts)
    # A DataProto needs a tensor column; verl's dataset brings the same one.
    columns["dummy_tensor"] = torch.zeros(len(prompts), 1, dtype=torch.uint8)
    return DataProto.from_single_dict(columns)
