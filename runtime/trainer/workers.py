"""The Ray actors that both trainers use: model ranks, the rollout server, agent-loop workers."""

from __future__ import annotations

import math
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

_ACTOR_CPUS = 0.5
"""Logical CPUs of each actor: they take turns, and torch's threads are set by ``runtime.torch_threads``."""

_MAX_CALLS = 1_000_000
"""Calls that an asyncio actor takes at once: every session of a step waits in one."""


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
        self.num_agents = config.actor_rollout_ref.rollout.agent.num_workers
        # Rank r of every role, and the rollout server beside rank 0, share bundle r: one GPU, where there are any.
        self._sharing = 3 if with_critic else 2
        self._gpus = 1 if uses_gpu(config) else 0
        ranks = {"CPU": _ACTOR_CPUS * self._sharing} | ({"GPU": 1} if self._gpus else {})
        bundles = [ranks] * self.world_size + [{"CPU": _ACTOR_CPUS}] * (self.num_agents + len(helpers))
        self.placement = reserve(bundles, config.runtime.schedule_timeout_s)
        try:
            self._start_actors(with_critic, agent_loop_class, helpers)
        except BaseException:
            self.close()
            raise

    def _start_actors(
        self, with_critic: bool, agent_loop_class: type, helpers: Sequence[tuple[type, tuple[Any, ...]]]
    ) -> None:
        config, first = self.config, self.world_size
        self.server = self._start(RolloutServer, self._model_options(0), config, max_concurrency=_MAX_CALLS)
        self.agents = [
            self._start(agent_loop_class, self._options(bundle), config, self.server, max_concurrency=_MAX_CALLS)
            for bundle in range(first, first + self.num_agents)
        ]
        self.helpers = [
            self._start(helper_class, self._options(first + self.num_agents + number), *arguments)
            for number, (helper_class, arguments) in enumerate(helpers)
        ]
        options = [self._model_options(rank) for rank in range(self.world_size)]
        self.actor = WorkerGroup(ActorWorker, options, config=config)
        self.critic = WorkerGroup(CriticWorker, options, config=config) if with_critic else None
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

    def _options(self, bundle: int) -> dict[str, Any]:
        return self.placement.options(bundle, _ACTOR_CPUS)

    def _model_options(self, rank: int) -> dict[str, Any]:
        # Rounded down, so that the shares of those in one bundle do not add up to more than its GPU.
        share = math.floor(100 * self._gpus / self._sharing) / 100
        return self.placement.options(rank, _ACTOR_CPUS, share)

    def _start(self, actor_class: type, options: dict[str, Any], *arguments: Any, **more: Any) -> Any:
        return ray.remote(actor_class).options(**options, **more).remote(*arguments)


def uses_gpu(config: DictConfig) -> bool:
    """Whether model actors ask Ray for GPUs: the driver's own machine need not have one."""
    wanted = config.trainer.device
    return wanted == "cuda" or (wanted == "auto" and ray.cluster_resources().get("GPU", 0) > 0)
