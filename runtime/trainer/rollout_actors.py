"""The Ray actors that play sessions: the rollout server and the agent-loop workers around it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import ray
import torch
from omegaconf import DictConfig

from runtime.rollout.server import RolloutServer
from runtime.workers.group import get

_MAX_CALLS = 1_000_000
"""Calls that an asyncio actor takes at once: every session of a step waits in one."""


class RolloutActors:
    """One server and its agent-loop workers; the constructor only starts them, ``wait`` waits.

    agent_loop_class: a trainer's own actor class, made of (config, server), with a method ``start``. server, agents:
    the Ray options of each actor.
    """

    def __init__(
        self,
        config: DictConfig,
        agent_loop_class: type,
        server: Mapping[str, Any],
        agents: Sequence[Mapping[str, Any]],
    ) -> None:
        self.config = config
        self.server = start_actor(RolloutServer, server, config, max_concurrency=_MAX_CALLS)
        self.agents = [
            start_actor(agent_loop_class, options, config, self.server, max_concurrency=_MAX_CALLS)
            for options in agents
        ]
        self._started = [agent.start.remote() for agent in self.agents]

    def wait(self) -> None:
        """Wait until every agent-loop worker is ready; raises what hinders one."""
        get(self._started, "agent loop")

    def expect(self, sessions: Sequence[tuple[int, int]]) -> None:
        """Tell the server which sessions (prompt position, session_id) come in this step."""
        get(self.server.expect.remote(list(sessions)), "rollout")

    def count_prompts(self, partition: str, step: int, rows: Mapping[int, int]) -> Mapping[int, int]:
        """Count prompts of dataset ``rows`` (row number: how many); how many of each came before in this step."""
        return get(self.server.count_prompts.remote(partition, step, dict(rows)), "rollout")

    def shares(self, num_rows: int) -> list[tuple[Any, list[int]]]:
        """Which agent-loop worker plays which rows: contiguous shares, none of them empty."""
        pieces = torch.arange(num_rows).chunk(len(self.agents))
        return [(agent, piece.tolist()) for agent, piece in zip(self.agents, pieces, strict=False)]

    def held_version(self) -> Hashable:
        """The version of the weights that the server has; ``None`` where it has no known ones, or sleeps."""
        return get(self.server.holds.remote(), "rollout")

    def update_weights(self, weights: Any, version: Hashable = None) -> None:
        """Give the server the policy's weights, a Ray reference of them by Hugging Face name; it wakes up for them."""
        get(self.server.update_weights.remote(weights, version), "rollout")

    def sleep(self) -> None:
        """Let the server give its device memory back until it gets weights."""
        get(self.server.sleep.remote(), "rollout")

    def close(self) -> None:
        """End the actors."""
        for actor in (self.server, *self.agents):
            ray.kill(actor)


def start_actor(actor_class: type, options: Mapping[str, Any], *arguments: Any, **more: Any) -> Any:
    """Start one Ray actor; more: Ray options beside ``options``."""
    return ray.remote(actor_class).options(**options, **more).remote(*arguments)
