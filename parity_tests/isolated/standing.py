"""Both trainers as they start themselves, serving one config after another with the same actors.

Starting actors takes half a minute, rebuilding what a config asks of them a fraction of a second. Nothing here stands
in for a part of a trainer: the constructors are theirs, and so is every stage.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig

from compat.protocol import DataProto
from compat.reward.adapters import pad_token_id
from compat.rows import read_batch
from compat.trajectories import to_dataproto
from legacy.agent_loop import only_output
from legacy.trainer import LegacyTrainer
from runtime.config import uses_critic, uses_reference
from runtime.identity import TrajectoryKey
from runtime.recipe import import_modules, with_modules_of_algorithms
from runtime.trainer.base import Trainer
from runtime.trainer.hooks import StageHook
from runtime.trainer.prompts import PromptSource
from runtime.trainer.workers import Workers
from runtime.trajectories import TrajectoryBatch
from runtime.workers.group import get
from v1 import data_plane
from v1.agent_loop import row_tags
from v1.data_plane import KVBatchMeta
from v1.trainer import V1Trainer


def call_in(actors: Iterable[Any], function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run ``function(worker, *arguments)`` inside each actor; the answers in order."""
    return get([actor.__ray_call__.remote(function, *arguments) for actor in actors], function.__name__)


class Standing(Trainer):
    """A trainer whose actors outlive its config. The constructor's config decides which actors there are."""

    everyone: Workers
    """All actors, also those that the present config has no use for."""

    def _start(self) -> None:
        super()._start()
        self.everyone = self.workers

    def serve(self, config: DictConfig, hooks: Sequence[StageHook] = (), plays: bool = True) -> None:
        """Take up ``config``, with fresh weights, as a new trainer of it would; the ranks are those there are.

        plays: whether sessions are to be played; the rollout server keeps the settings that it was started with.
        Raises ``ConfigError`` for a config that cannot be trained.
        """
        import_modules(config)
        config = with_modules_of_algorithms(config)
        self._prepare(config, PromptSource(config) if plays else self.prompts, hooks)
        self.workers = replace(self.everyone, critic=self.everyone.critic if uses_critic(config) else None)
        for role, group in self.workers.groups.items():
            call_in(group.actors, self.reload, role, self.config)
        if plays:
            agents = self.workers.rollout.agents
            call_in(agents, _take_config, self.config)
            get([agent.start.remote() for agent in agents], "agent loop")

    @staticmethod
    def reload(worker: Any, role: str, config: DictConfig) -> None:
        """Build a rank's models for ``config``; runs inside its actor, and is collective."""
        raise NotImplementedError

    def place(self, keys: Sequence[TrajectoryKey]) -> None:
        """Let prompts count as submitted in the order of ``keys``."""
        self._positions = {uid: place for place, uid in enumerate(dict.fromkeys(key.uid for key in keys))}

    def put(self, batch: TrajectoryBatch) -> Any:
        """``batch`` in the container that this trainer's stages take."""
        raise NotImplementedError

    def drop(self, batch: Any) -> None:
        """Let go of what ``put`` made."""

    def read_back(self, batch: TrajectoryBatch, fields: Sequence[str]) -> TrajectoryBatch:
        """``fields`` as they come out of the container that ``batch`` was put into."""
        fed = self.put(batch)
        try:
            return self.read(fed, fields)
        finally:
            self.drop(fed)

    def read(self, batch: Any, fields: Sequence[str]) -> TrajectoryBatch:
        """``fields`` of what ``put`` made."""
        raise NotImplementedError

    def processes(self) -> list[Any]:
        """Every actor of this trainer."""
        ranks = [actor for group in self.everyone.groups.values() for actor in group.actors]
        return [*ranks, self.everyone.rollout.server, *self.everyone.rollout.agents, *self.everyone.helpers]

    def close(self) -> None:
        """End the run, and leave the actors to the next config."""
        if self.tracking is not None:
            self.tracking.finish()

    def end(self) -> None:
        """End the actors."""
        super().close()


class StandingLegacy(Standing, LegacyTrainer):
    """``LegacyTrainer``, standing."""

    def read(self, batch: DataProto, fields: Sequence[str]) -> TrajectoryBatch:
        return read_batch(batch, fields)

    def _start(self) -> None:
        super()._start()
        self._groups: tuple[Any, Any] = (self.critic_wg, self.ref_policy_wg)

    def serve(self, config: DictConfig, hooks: Sequence[StageHook] = (), plays: bool = True) -> None:
        super().serve(config, hooks, plays)
        critic, reference = self._groups
        self.critic_wg = critic if uses_critic(config) else None
        self.ref_policy_wg = reference if uses_reference(config) else None
        # A group cuts batches by the config that its workers were made with.
        parts: list[tuple[Any, DictConfig]] = [
            (self.actor_rollout_wg, self.config.actor_rollout_ref),
            (critic, self.config.critic),
        ]
        for group, part in parts:
            group.ray_cls_with_init.kwargs["config"] = part
        # What the trainer makes of its config when it is first asked for.
        for made in ("reward_stage", "advantage_stage", "async_rollout_manager", "checkpoint_manager"):
            self.__dict__.pop(made, None)

    def put(self, batch: TrajectoryBatch) -> DataProto:
        """Raises ``RolloutError``, as the trainer's agent loops do, for a session with several outputs."""
        sessions = itertools.groupby(batch.keys, key=lambda key: (key.uid, key.session_id))
        for (uid, _), outputs in sessions:
            only_output(uid, list(outputs))
        data = self.config.data
        padding = pad_token_id(self.prompts.tokenizer)
        return to_dataproto(batch, data.max_prompt_length, data.max_response_length, padding)

    @staticmethod
    def reload(worker: Any, role: str, config: DictConfig) -> None:
        part = config.critic if role == "critic" else config.actor_rollout_ref
        worker.config, worker.settings, worker._updates = part, config, 0
        worker._is_ref = uses_reference(config)
        worker.init_model()


class StandingV1(Standing, V1Trainer):
    """``V1Trainer``, standing; what it is fed lies in partitions of its own."""

    def serve(self, config: DictConfig, hooks: Sequence[StageHook] = (), plays: bool = True) -> None:
        super().serve(config, hooks, plays)
        self.replay_buffer = self._replay_buffer("train")
        # What a run that failed left there would be taken for sessions of the next one.
        for partition in (self.replay_buffer.partition_id, self._fed):
            data_plane.clear(list(data_plane.list_tags(partition)), partition)
        call_in([self.data_worker], _serve_data, self.config, self.hooks)

    @property
    def _fed(self) -> str:
        return f"{self.run_name}-fed"

    def put(self, batch: TrajectoryBatch) -> KVBatchMeta:
        tags = row_tags(batch, self.global_steps)
        data_plane.put_rows(batch, self._fed, tags)
        return KVBatchMeta(keys=[str(key) for key in batch.keys], tags=tags, partition_id=self._fed)

    def read(self, batch: KVBatchMeta, fields: Sequence[str]) -> TrajectoryBatch:
        return data_plane.read(batch, fields)

    def drop(self, batch: KVBatchMeta) -> None:
        data_plane.clear(batch.keys, batch.partition_id)

    @staticmethod
    def reload(worker: Any, role: str, config: DictConfig) -> None:  # noqa: ARG004  a rank knows what it is
        type(worker).__init__(worker, worker.rank, worker.world_size, config)
        worker.setup("the ranks have met")


def _take_config(agent: Any, config: DictConfig) -> None:
    agent.config = config


def _serve_data(worker: Any, config: DictConfig, hooks: Sequence[StageHook]) -> None:
    type(worker).__init__(worker, config, hooks)
    worker.start()
