"""The seeds that requests bring, asked through each trainer's own code from the loader to the server; see ``facts``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from compat.protocol import DataProto
from legacy.agent_loop import AgentLoopWorker, SessionRequest
from legacy.gen_batch import session_requests
from parity_tests.isolated import Bench
from parity_tests.matrix.axes import ROLLOUT, derived
from parity_tests.matrix.fact import Check
from runtime.agent_loop import SessionRunner, Submission
from runtime.agent_loop.runner import session_params
from runtime.arrays import object_array
from runtime.data.chat import load_tokenizer
from runtime.data.files import ROW_NUMBER
from runtime.rollout.types import GenerationOutput, GenerationRequest
from runtime.trainer.prompts import PromptLoaders, PromptSource
from runtime.trainer.rollout_actors import RolloutActors

_PROMPTS, _SESSIONS = 96, 8


def seeds_of_any_chunking(bench: Bench, folder: Path) -> Check:  # noqa: ARG001
    """A step's prompts come from the loader in so many batches and are dealt to as many workers as a trainer does."""
    config = derived({"data.train_batch_size": _PROMPTS, f"{ROLLOUT}.n": _SESSIONS})
    right: dict[str, int] = {}
    for chunks in (1, 4, 7):
        prompts = _submitted(config, chunks)
        for side, play in (("legacy", _legacy), ("v1", _v1)):
            server = _SeedServer()
            asyncio.run(play(config, prompts, chunks, server))
            seeds = server.seeds
            right = right or seeds
            if len(set(seeds.values())) != _PROMPTS * _SESSIONS:
                yield f"{side}: {len(set(seeds.values()))} seeds of {server.requests} requests in {chunks} chunks"
            elif seeds != right:
                yield f"{side}: other seeds in {chunks} chunks"


class _SeedServer:
    """In the place of a rollout server: it keeps the seed of each request, and answers with one token."""

    def __init__(self) -> None:
        self.seeds: dict[str, int] = {}
        self.requests = 0
        self.generate = SimpleNamespace(remote=self._generate)
        self.finish = SimpleNamespace(remote=self._finish)

    async def _generate(self, request: GenerationRequest) -> GenerationOutput:
        self.seeds[request.request_id] = request.params.seed
        self.requests += 1
        return GenerationOutput([1], [0.0], "length")

    async def _finish(self, session: tuple[int, int]) -> None:
        """Nobody waits for a session to end."""


async def _legacy(config: DictConfig, prompts: list[Submission], chunks: int, server: Any) -> None:
    rows = DataProto.from_dict(non_tensors={"submission": object_array(prompts)}).repeat(_SESSIONS)
    rows.non_tensor_batch["session_id"] = np.tile(np.arange(_SESSIONS), _PROMPTS)
    requests = [SessionRequest(*asked, score=False) for asked in session_requests(rows, config, 1, _none_before)]
    for share in _shares(len(requests), chunks):
        worker = AgentLoopWorker(config, server)
        await worker.start()
        await worker.generate_sequences([requests[row] for row in share])


def _none_before(partition: str, step: int, rows: Mapping[int, int]) -> Mapping[int, int]:  # noqa: ARG001
    return dict.fromkeys(rows, 0)


async def _v1(config: DictConfig, prompts: list[Submission], chunks: int, server: Any) -> None:
    for share in _shares(len(prompts), chunks):
        runner = SessionRunner(config, server)
        runner.reward_manager = None  # scores are not looked at
        await asyncio.gather(*(runner.run_prompt(prompts[row], session_params(config)) for row in share))


def _submitted(config: DictConfig, chunks: int) -> list[Submission]:
    """The prompts of the first step, from a loader that yields them in ``chunks`` batches."""
    tokenizer = load_tokenizer(config.actor_rollout_ref.model)
    return next(PromptSource(config, PromptLoaders(tokenizer, _Loader(chunks), lambda: None)).batches())


class _Loader:
    dataset = sampler = None

    def __init__(self, chunks: int) -> None:
        self.batches = torch.arange(_PROMPTS).chunk(chunks)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for rows in self.batches:
            yield {ROW_NUMBER: rows, "raw_prompt_ids": [[1]] * len(rows)}


def _shares(rows: int, workers: int) -> list[list[int]]:
    """Which rows each worker plays."""
    actors: Any = SimpleNamespace(agents=range(workers))
    return [share for _, share in RolloutActors.shares(actors, rows)]
