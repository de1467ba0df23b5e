"""The legacy trainer: one padded ``DataProto`` in the driver, onto which every stage unions its columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from compat.protocol import DataProto
from compat.rows import answer, column_names, keys_of, read_batch
from legacy.agent_loop import AgentLoopManager, AgentLoopWorker
from runtime.advantage import AdvantageStage
from runtime.agent_loop import Submission
from runtime.agent_loop.runner import session_params, sessions_each
from runtime.arrays import object_array
from runtime.balance import balanced_order
from runtime.config import bypasses_old_log_prob, uses_critic
from runtime.group_filter import GroupFilter
from runtime.identity import TrajectoryKey
from runtime.metrics import batch_metrics, by_source
from runtime.pf_ppo import Resampling
from runtime.reward import RewardStage
from runtime.trainer.base import Series, Trainer
from runtime.trainer.hooks import StageRecord
from runtime.trainer.stages import written_fields
from runtime.trainer.workers import Workers


class LegacyTrainer(Trainer):
    """verl's legacy ``RayPPOTrainer``."""

    def _start_workers(self) -> Workers:
        self.reward_stage = RewardStage.from_config(self.config)
        self.advantage_stage = AdvantageStage.from_config(self.config)
        workers = Workers(self.config, with_critic=uses_critic(self.config), agent_loop_class=AgentLoopWorker)
        self.async_rollout_manager = AgentLoopManager(workers)
        return workers

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
        return batch.union(self._compute_old_log_prob(batch)), {}

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
        return batch, self._update_critic(batch)

    def update_actor(self, batch: DataProto) -> tuple[DataProto, Series]:
        return batch, self._update_actor(batch)

    # verl's seams: a recipe that overrides the loop calls these.

    def _get_gen_batch(self, batch: DataProto) -> DataProto:
        """What rollout needs of P prompts."""
        return batch.select(batch_keys=["dummy_tensor"], non_tensor_batch_keys=["submission"])

    def _compute_old_log_prob(self, batch: DataProto) -> DataProto:
        return self.workers.group("actor").dispatch("compute_log_prob", batch, self.rank_order("actor", len(batch)))

    def _compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        return self.workers.group("actor").dispatch("compute_ref_log_prob", batch, self.rank_order("actor", len(batch)))

    def _compute_values(self, batch: DataProto) -> DataProto:
        return self.workers.group("critic").dispatch("compute_values", batch, self.rank_order("critic", len(batch)))

    def _update_critic(self, batch: DataProto) -> Series:
        return self._update("critic", batch)

    def _update_actor(self, batch: DataProto) -> Series:
        return self._update("actor", batch)

    # What the shared loop asks for.

    def batch_metrics(self, batch: DataProto) -> dict[str, float]:
        data = self.config.data
        return batch_metrics(read_batch(batch, self.metric_fields), data.max_response_length, data.max_prompt_length)

    def whole_batch(self, batch: DataProto) -> DataProto:
        return batch

    def validation_scores(self, prompts: list[Submission]) -> dict[str, list[float]]:
        batch, _ = self.reward(self._play(prompts, validate=True))
        trajectories = read_batch(batch, ["rm_scores", "data_source"])
        totals = trajectories.responses.sum(trajectories["rm_scores"])
        return by_source(trajectories.objects["data_source"], totals)

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
        gen_batch = self._get_gen_batch(batch)
        requests = _sessions(gen_batch.repeat(n, interleave=True), list(range(n)) * len(prompts))
        greedy = [session_id for session_id in session_params(self.config, validate) if session_id >= n]
        if greedy:
            # In the same call as the others: ReMax's baseline must not wait for them.
            requests = DataProto.concat([requests, _sessions(gen_batch, greedy * len(prompts))])
        requests.meta_info["validate"] = validate
        generated = self.async_rollout_manager.generate_sequences(requests)
        trained = n * len(prompts)
        played = batch.repeat(n, interleave=True).union(generated.slice(0, trained))
        if greedy:
            baselines = generated.slice(trained, None)["rm_scores"].sum(-1)
            played = played.union(DataProto.from_dict({"reward_baselines": baselines.repeat_interleave(n)}))
        return played

    def _update(self, role: str, batch: DataProto) -> Series:
        group = self.workers.group(role)
        return group.map_shards(f"update_{role}", batch, self.rank_order(role, len(batch)), step=self.global_steps)[0]


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
