"""The rollout server: one Ray actor that holds the policy for generation and that every agent loop asks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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

    async def finish(self, session: Session) -> None:
        """Say that a session has ended, well or badly: the others no longer wait for it."""
        self._scheduler.finish(session)

    async def update_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Replace the policy's weights between two batches; see :func:`runtime.rollout.weights.load_weights`."""
        await self._scheduler.call(self._generator.update_weights, weights)

    async def sleep(self) -> None:
        """Give the device's memory back until ``wake_up``, after the batch that is being decoded."""
        await self._scheduler.call(self._generator.sleep)

    async def wake_up(self) -> None:
        """Take the device again."""
        await self._scheduler.call(self._generator.wake_up)


def generation_threads(config: DictConfig) -> int:
    """``runtime.torch_threads``, or every core of this machine: model ranks are idle while the server generates."""
    return config.runtime.torch_threads or os.cpu_count() or 1
