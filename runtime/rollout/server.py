"""The rollout server: one Ray actor that holds the policy for generation and that every agent loop asks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from omegaconf import DictConfig

from runtime.recipe import import_modules
from runtime.rollout.generators import build_generator
from runtime.rollout.queues import Session
from runtime.rollout.scheduler import RequestScheduler
from runtime.rollout.types import GenerationOutput, GenerationRequest


class RolloutServer:
    """Runs as an asyncio actor: ``ray.remote(RolloutServer).options(max_concurrency=...).remote(config)``.

    Reads ``actor_rollout_ref.{model,rollout}``, ``trainer.device``, ``runtime.torch_threads`` and
    ``runtime.rollout_timeout_s``. The process needs ``runtime.environment.WORKER_ENV`` before it starts.
    """

    def __init__(self, config: DictConfig) -> None:
        import_modules(config)
        rollout = config.actor_rollout_ref.rollout
        # One thread, because OpenMP keeps the number of torch threads for each thread that asks.
        compute = ThreadPoolExecutor(
            1, "rollout", initializer=torch.set_num_threads, initargs=(generation_threads(config),)
        )
        self._counted_step: dict[str, int] = {}
        self._prompts: dict[str, Counter[int]] = {}
        self._version: Hashable = None
        self._asleep = False
        self._generator = compute.submit(build_generator, config).result()
        self._scheduler = RequestScheduler(
            self._generator,
            compute,
            deterministic=rollout.deterministic,
            max_num_seqs=rollout.max_num_seqs,
            timeout_s=config.runtime.rollout_timeout_s,
        )

    async def generate(self, request: GenerationRequest) -> GenerationOutput:
        """Answer one turn of one session; RolloutError names the request."""
        return await self._scheduler.generate(request)

    async def expect(self, sessions: Sequence[Session]) -> None:
        """Say, before the first request of a step, which (prompt position, session_id) will ask."""
        self._scheduler.expect(sessions)

    async def count_prompts(self, partition: str, step: int, rows: Mapping[int, int]) -> dict[int, int]:
        """Count prompts by dataset row; how many of each row this step has had before, whoever asked for them."""
        if self._counted_step.get(partition) != step:
            self._counted_step[partition], self._prompts[partition] = step, Counter()
        before = {row: self._prompts[partition][row] for row in rows}
        self._prompts[partition].update(rows)
        return before

    async def finish(self, session: Session) -> None:
        """Say that a session has ended, well or badly: the others no longer wait for it."""
        self._scheduler.finish(session)

    async def holds(self) -> Hashable:
        """The version of the weights that this server has, as ``update_weights`` was told; ``None`` while it sleeps."""
        return None if self._asleep else self._version

    async def update_weights(self, weights: Mapping[str, np.ndarray], version: Hashable = None) -> None:
        """Wake up and replace the policy's weights between two batches; see ``runtime.rollout.weights.load_weights``.

        version: what ``holds`` answers from now on; ``None``: nobody knows them by a name.
        """
        if self._asleep:
            await self._scheduler.call(self._generator.wake_up)
            self._asleep = False
        await self._scheduler.call(self._generator.update_weights, weights)
        self._version = version

    async def sleep(self) -> None:
        """Give the device's memory back until the next ``update_weights``, after the batch that is being decoded."""
        if not self._asleep:
            await self._scheduler.call(self._generator.sleep)
            self._asleep = True


def generation_threads(config: DictConfig) -> int:
    """``runtime.torch_threads``, or every core of this machine: model ranks are idle while the server generates."""
    return config.runtime.torch_threads or os.cpu_count() or 1
