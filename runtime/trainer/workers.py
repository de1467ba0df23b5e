"""The Ray actors that both trainers use: model ranks, the rollout server, agent-loop workers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ray
import torch
from omegaconf import DictConfig

from runtime.cluster import reserve
from runtime.config import num_ranks
from runtime.errors import ConfigError
from runtime.rollout.server import RolloutServer
from runtime.workers.group import WorkerGroup, get
from runtime.workers.model_workers import ActorWorker, CriticWorker

_HELPER_CPUS = 0.5
"""Logical CPUs of an actor that mostly waits."""


class Workers:
    """Starts everything side by side, because imports dominate: model ranks first, they are the slowest."""

    def __init__(
        self,
        config: DictConfig,
        *,
        with_critic: bool,
        agent_loop_class: type,
        helpers: Sequence[tuple[type, tuple[Any, ...]]] = (),
    ) -> None:
        """agent_loop_class, helpers: a trainer's own actor classes, with a method ``start``; helpers with arguments."""
        self.config = config
        self.world_size = num_ranks(config)
        ranks = self.world_size * (2 if with_critic else 1)
        num_agents = config.actor_rollout_ref.rollout.agent.num_workers
        model_bundle = {"CPU": 1.0} | ({"GPU": _gpu_share(with_critic)} if uses_gpu(config) else {})
        bundles = [model_bundle] * (ranks + 1) + [{"CPU": _HELPER_CPUS}] * (num_agents + len(helpers))
        self.placement = reserve(bundles, config.runtime.schedule_timeout_s)
        try:
            self._start_actors(ranks, num_agents, with_critic, agent_loop_class, helpers)
        except BaseException:
            self.close()
            raise

    def _start_actors(
        self,
        ranks: int,
        num_agents: int,
        with_critic: bool,
        agent_loop_class: type,
        helpers: Sequence[tuple[type, tuple[Any, ...]]],
    ) -> None:
        config = self.config
        self.server = self._start(RolloutServer, ranks, config, max_concurrency=10_000)
        self.agents = [
            self._start(agent_loop_class, ranks + 1 + number, config, self.server, max_concurrency=1_000)
            for number in range(num_agents)
        ]
        self.helpers = [
            self._start(helper_class, ranks + 1 + num_agents + number, *arguments)
            for number, (helper_class, arguments) in enumerate(helpers)
        ]
        self.actor = WorkerGroup(ActorWorker, self.placement, range(self.world_size), config=config)
        self.critic = (
            WorkerGroup(CriticWorker, self.placement, range(self.world_size, ranks), config=config)
            if with_critic
            else None
        )
        started = [actor.start.remote() for actor in (*self.agents, *self.helpers)]
        for role in self._present(("actor", "critic")):
            self.group(role).setup()
        get(started, "agent loop")

    def group(self, role: str) -> WorkerGroup:
        """The ranks of ``actor`` or ``critic``; ``ConfigError`` when there is no critic."""
        if role == "actor":
            return self.actor
        if self.critic is None:
            raise ConfigError("this config runs no critic; set critic.enable=true or algorithm.adv_estimator=gae")
        return self.critic

    def expect(self, sessions: Sequence[tuple[int, int]]) -> None:
        """Tell the rollout server which sessions (prompt position, session_id) come in this step."""
        get(self.server.expect.remote(list(sessions)), "rollout")

    def shares(self, num_rows: int) -> list[tuple[Any, list[int]]]:
        """Which agent-loop worker plays which rows: contiguous shares, none of them empty."""
        pieces = torch.arange(num_rows).chunk(len(self.agents))
        return [(agent, piece.tolist()) for agent, piece in zip(self.agents, pieces, strict=False)]

    def push_weights(self) -> None:
        """Bring the policy's weights to the rollout server."""
        weights = self.actor.call_all("full_weights")[0]
        get(self.server.update_weights.remote(weights), "rollout")

    def digests(self, *roles: str) -> dict[str, str]:
        """The sha256 of every weight of ``roles`` (``actor``, ``critic``), by its name prefixed with the role."""
        found: dict[str, str] = {}
        for role in self._present(roles):
            digests = self.group(role).call_all("digests")[0]
            found |= {f"{role}.{name}": digest for name, digest in digests.items()}
        return found

    def export_weights(self, path: str) -> None:
        """Write ``actor.*`` and ``critic.*`` weights to one safetensors file."""
        from safetensors.numpy import save_file

        weights = {
            f"{role}.{name}": value
            for role in self._present(("actor", "critic"))
            for name, value in ray.get(self.group(role).call_all("full_weights")[0]).items()
        }
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        save_file(weights, path)

    def close(self) -> None:
        """End every actor and give their resources back."""
        self.placement.release()

    def _present(self, roles: Sequence[str]) -> list[str]:
        return [role for role in roles if role == "actor" or self.critic is not None]

    def _start(self, actor_class: type, slot: int, *arguments: Any, **options: Any) -> Any:
        return ray.remote(actor_class).options(**self.placement.options(slot), **options).remote(*arguments)


def uses_gpu(config: DictConfig) -> bool:
    """Whether model actors ask Ray for GPUs."""
    return config.trainer.device == "cuda" or (config.trainer.device == "auto" and torch.cuda.is_available())


def _gpu_share(with_critic: bool) -> float:
    """The part of a GPU that each model actor asks for: policy, rollout and critic of one rank share one."""
    return 0.33 if with_critic else 0.5
