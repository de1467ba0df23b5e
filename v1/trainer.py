"""The V1 trainer: trajectories lie in TransferQueue, the controller holds keys, tags and figures."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from compat.protocol import DataProto
from runtime import containers
from runtime.agent_loop import Submission
from runtime.agent_loop.runner import session_params, sessions_each
from runtime.balance import balanced_order
from runtime.config import bypasses_old_log_prob, uses_critic
from runtime.generations import Generations
from runtime.group_filter import GroupFilter
from runtime.identity import TrajectoryKey
from runtime.pf_ppo import Resampling
from runtime.trainer.base import Series, Trainer
from runtime.trainer.workers import Workers, start_workers
from runtime.workers.group import check_finished, get
from v1 import data_plane
from v1.agent_loop import AgentLoopWorker
from v1.data_plane import KVBatchMeta, Rows
from v1.data_worker import DataWorker
from v1.replay_buffer import ReplayBuffer


class V1Trainer(Trainer):
    """verl's ``PPOTrainer`` in mode ``sync``."""

    def _start_workers(self) -> Workers:
        data_plane.start(self.config)
        # Runs that share a TransferQueue (one test session, one Ray cluster) keep to partitions of their own.
        self.run_name = f"run-{uuid.uuid4().hex[:8]}"
        self.replay_buffer = self._replay_buffer("train")
        workers = start_workers(
            self.config,
            with_critic=uses_critic(self.config),
            agent_loop_class=AgentLoopWorker,
            helpers=[(DataWorker, (self.config, self.hooks))],
        )
        (self.data_worker,) = workers.helpers
        return workers

    def play(self, prompts: list[Submission]) -> KVBatchMeta:
        return self.scored_for_filter(self._play(prompts, self.replay_buffer, validate=False))

    def kept_rows(self, batch: KVBatchMeta, group_filter: GroupFilter) -> list[int]:
        return self._on_data("kept_rows", batch, group_filter)

    def discard(self, batch: KVBatchMeta, rows: Sequence[int]) -> None:
        self.replay_buffer.clear(containers.select_rows(batch, torch.tensor(rows, dtype=torch.int64)))

    def reward(self, batch: KVBatchMeta) -> tuple[KVBatchMeta, Series]:
        self._on_data("compute_rewards", batch)
        return batch, {}

    def balance(self, batch: Rows) -> tuple[Rows, Series]:
        lengths = [tag["seq_len"] for tag in batch.tags]
        order = balanced_order(lengths, self.mini_batch_rows("actor"), self.workers.world_size)
        return containers.select_rows(batch, order), {}

    def old_log_prob(self, batch: KVBatchMeta) -> tuple[KVBatchMeta, Series]:
        if bypasses_old_log_prob(self.config):
            self._on_data("take_rollout_log_probs", batch)
            return batch, {}
        return self.workers.group("actor").dispatch("compute_log_prob", batch, self.rank_order("actor", len(batch))), {}

    def ref_log_prob(self, batch: KVBatchMeta) -> tuple[KVBatchMeta, Series]:
        return self.workers.group("actor").dispatch(
            "compute_ref_log_prob", batch, self.rank_order("actor", len(batch))
        ), {}

    def values(self, batch: KVBatchMeta) -> tuple[KVBatchMeta, Series]:
        return self.workers.group("critic").dispatch("compute_values", batch, self.rank_order("critic", len(batch))), {}

    def advantage(self, batch: KVBatchMeta) -> tuple[KVBatchMeta, Series]:
        batch.extra_info = {"kl_coef": self.kl_controller.value}
        scalars = self._on_data("compute_advantage", batch)
        self.update_kl(scalars, len(batch))
        return batch, {name: [value] for name, value in scalars.items()}

    def drawn_rows(self, batch: KVBatchMeta, resampling: Resampling) -> list[int]:
        return self._on_data("drawn_rows", batch, resampling, self.global_steps)

    def update_critic(self, batch: Rows) -> tuple[Rows, Series]:
        return batch, self._update("critic", batch)

    def update_actor(self, batch: Rows) -> tuple[Rows, Series]:
        return batch, self._update("actor", batch)

    def batch_metrics(self, batch: Rows) -> dict[str, float]:
        return self._on_data("batch_metrics", batch, self.metric_fields)

    def whole_batch(self, batch: Rows) -> DataProto:
        """Every token of the batch comes to the controller: a sampler of an old recipe lives there and reads it."""
        return self._on_data("whole_batch", batch)

    def generations(self, batch: Rows) -> Generations:
        return self._on_data("generations", batch)

    def validation_generations(self, prompts: list[Submission]) -> Generations:
        buffer = self._replay_buffer("val")
        batch, _ = self.reward(self._play(prompts, buffer, validate=True))
        played = self.generations(batch)
        buffer.clear(batch)
        return played

    def keys_of(self, batch: Rows) -> list[TrajectoryKey]:
        return [TrajectoryKey.parse(key) for key in batch.keys]

    def record(self, batch: Rows | None, stage: str, series: Series, digests: Mapping[str, str]) -> None:
        canonical = None
        if batch is not None:
            canonical = containers.select_rows(batch, torch.tensor(self.canonical_places(batch)).argsort())
        self._on_data(
            "run_hooks",
            canonical,
            self.global_steps,
            stage,
            dict(series),
            dict(digests),
        )

    def finish_step(self, batch: Rows) -> None:
        self.replay_buffer.clear(batch)

    def _replay_buffer(self, partition: str) -> ReplayBuffer:
        return ReplayBuffer(f"{self.run_name}-{partition}", self.config)

    def _play(self, prompts: list[Submission], buffer: ReplayBuffer, validate: bool) -> KVBatchMeta:
        n = sessions_each(self.config, validate)
        sessions = session_params(self.config, validate)
        self.workers.rollout.expect([(prompt.position, session_id) for prompt in prompts for session_id in sessions])
        calls = [
            agent.generate_sequences.remote(
                [prompts[row] for row in rows], n, sessions, buffer.partition_id, self.global_steps
            )
            for agent, rows in self.workers.rollout.shares(len(prompts))
        ]
        batch = buffer.sample([prompt.uid for prompt in prompts], lambda: check_finished(calls, "agent loop"))
        get(calls, "agent loop")
        return batch

    def _update(self, role: str, batch: Rows) -> Series:
        group = self.workers.group(role)
        return group.map_shards(f"update_{role}", batch, self.rank_order(role, len(batch)), step=self.global_steps)[0]

    def _on_data(self, method: str, *arguments: Any) -> Any:
        return get(getattr(self.data_worker, method).remote(*arguments), "data worker")
