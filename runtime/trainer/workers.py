"""The Ray actors that both trainers use: model ranks, the rollout server, agent-loop workers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ray
from omegaconf import DictConfig

from runtime.cluster import Placement, reserve
from runtime.config import num_ranks
from runtime.errors import ConfigError
from runtime.trainer.policy_weights import PolicyWeights
from runtime.trainer.rollout_actors import RolloutActors, start_actor
from runtime.workers.group import WorkerGroup, get
from runtime.workers.model_workers import ActorWorker, CriticWorker

ACTOR_CPUS = 0.5
"""Logical CPUs of each actor: they take turns, and torch's threads are set by ``runtime.torch_threads``."""


@dataclass
class Workers:
    """The actors of one trainer, and what gives their resources back."""

    actor: WorkerGroup
    critic: WorkerGroup | None
    rollout: RolloutActors
    release: Callable[[], None]
    helpers: Sequence[Any] = ()

    @property
    def world_size(self) -> int:
        """Ranks of each model."""
        return self.actor.world_size

    def group(self, role: str) -> WorkerGroup:
        """The ranks of ``actor`` or ``critic``; ``ConfigError`` when there is no critic."""
        if role == "actor":
            return self.actor
        if self.critic is None:
            raise ConfigError("this config runs no critic; set critic.enable=true or algorithm.adv_estimator=gae")
        return self.critic

    @property
    def groups(self) -> dict[str, WorkerGroup]:
        """The groups that train, by role."""
        return {role: self.group(role) for role in self._present(("actor", "critic"))}

    @cached_property
    def policy_weights(self) -> PolicyWeights:
        """The way of the policy's weights to the rollout server."""
        return PolicyWeights(self.actor, self.rollout)

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
        self.release()

    def _present(self, roles: Sequence[str]) -> list[str]:
        return [role for role in roles if role == "actor" or self.critic is not None]


def start_workers(
    config: DictConfig,
    *,
    with_critic: bool,
    agent_loop_class: type,
    helpers: Sequence[tuple[type, tuple[Any, ...]]] = (),
) -> Workers:
    """Start everything side by side, because imports dominate, and wait until all are ready.

    helpers: a trainer's own actor classes, with a method ``start``, and their arguments.
    """
    placement = _Layout(config, with_critic, len(helpers))
    try:
        workers = _start_all(config, placement, agent_loop_class, helpers)
        started = [helper.start.remote() for helper in workers.helpers]
        for role in ("actor", "critic") if with_critic else ("actor",):
            workers.group(role).setup()
        workers.rollout.wait()
        get(started, "helper")
    except BaseException:
        placement.release()
        raise
    return workers


class _Layout:
    """Who shares what: rank r of every role, and the server beside rank 0, share bundle r; others have their own."""

    def __init__(self, config: DictConfig, with_critic: bool, num_helpers: int) -> None:
        self.num_ranks = num_ranks(config)
        self.num_agents = config.actor_rollout_ref.rollout.agent.num_workers
        self.num_helpers = num_helpers
        self.with_critic = with_critic
        self._sharing = 3 if with_critic else 2
        self._gpus = 1 if uses_gpu(config) else 0
        ranks = {"CPU": ACTOR_CPUS * self._sharing} | ({"GPU": 1} if self._gpus else {})
        bundles = [ranks] * self.num_ranks + [{"CPU": ACTOR_CPUS}] * (self.num_agents + num_helpers)
        self._placement: Placement = reserve(bundles, config.runtime.schedule_timeout_s)

    def rank(self, rank: int) -> dict[str, Any]:
        # Rounded down, so that the shares of those in one bundle do not add up to more than its GPU.
        share = math.floor(100 * self._gpus / self._sharing) / 100
        return self._placement.options(rank, ACTOR_CPUS, share)

    def agents(self) -> list[dict[str, Any]]:
        return [self._placement.options(self.num_ranks + number, ACTOR_CPUS) for number in range(self.num_agents)]

    def helpers(self) -> list[dict[str, Any]]:
        first = self.num_ranks + self.num_agents
        return [self._placement.options(first + number, ACTOR_CPUS) for number in range(self.num_helpers)]

    def release(self) -> None:
        self._placement.release()


def _start_all(
    config: DictConfig,
    layout: _Layout,
    agent_loop_class: type,
    helpers: Sequence[tuple[type, tuple[Any, ...]]],
) -> Workers:
    rollout = RolloutActors(config, agent_loop_class, layout.rank(0), layout.agents())
    helping = [
        start_actor(helper_class, options, *arguments)
        for (helper_class, arguments), options in zip(helpers, layout.helpers(), strict=True)
    ]
    ranks = [layout.rank(rank) for rank in range(layout.num_ranks)]
    actor = WorkerGroup.start(ActorWorker, ranks, config=config)
    critic = WorkerGroup.start(CriticWorker, ranks, config=config) if layout.with_critic else None
    return Workers(actor, critic, rollout, layout.release, helping)


def uses_gpu(config: DictConfig) -> bool:
    """Whether model actors ask Ray for GPUs: the driver's own machine need not have one."""
    wanted = config.trainer.device
    return wanted == "cuda" or (wanted == "auto" and ray.cluster_resources().get("GPU", 0) > 0)
