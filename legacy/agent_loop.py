"""Agent-loop workers that return one padded ``DataProto``, and the manager that hands rows to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from omegaconf import DictConfig

from compat.protocol import DataProto
from compat.trajectories import to_dataproto
from legacy.gen_batch import answer_in_kind, session_requests
from runtime.agent_loop import SessionRunner, Submission, as_trajectories
from runtime.agent_loop.runner import unfinished
from runtime.errors import RolloutError
from runtime.identity import TrajectoryKey
from runtime.rollout.types import SamplingParams
from runtime.trainer.rollout_actors import RolloutActors
from runtime.workers.group import get


@dataclass(frozen=True)
class SessionRequest:
    """One row to play. score: whether the worker scores it; rows without reward columns are scored by the driver."""

    submission: Submission
    session_id: int
    params: SamplingParams
    score: bool = True


class WeightsSource(Protocol):
    """Where a manager's rollout gets the policy's weights from; see ``PolicyWeights``."""

    rollout: RolloutActors

    def bring_newest(self) -> None: ...

    def sleep(self) -> None: ...


class AgentLoopWorker:
    """An asyncio Ray actor that plays one session a row (verl's legacy ``AgentLoopWorker``)."""

    def __init__(self, config: DictConfig, server: Any) -> None:
        self.config, self.server = config, server

    async def start(self) -> None:
        """Load what sessions need. Not in the constructor: there Ray would hide the type of an error."""
        self.runner = SessionRunner(self.config, self.server)

    async def generate_sequences(self, requests: Sequence[SessionRequest]) -> DataProto:
        """One trajectory a request, in the order given, padded to ``data.max_{prompt,response}_length``."""
        sessions = [
            asyncio.create_task(
                self.runner.run_session(request.submission, request.session_id, request.params, request.score)
            )
            for request in requests
        ]
        _, late = await asyncio.wait(sessions, timeout=self.config.runtime.rollout_timeout_s)
        uids = [request.submission.uid for request in requests]
        if late:
            waiting = [uid for uid, session in zip(uids, sessions, strict=True) if session in late]
            raise unfinished(waiting, len(set(uids)), self.config)
        outputs = [
            only_output(request.submission.uid, session.result())
            for request, session in zip(requests, sessions, strict=True)
        ]
        keys = [TrajectoryKey(request.submission.uid, request.session_id, 0) for request in requests]
        data = self.config.data
        tokenizer = self.runner.tokenizer
        pad_token_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        return to_dataproto(
            as_trajectories(keys, outputs, [{}] * len(keys), self.runner.limits),
            data.max_prompt_length,
            data.max_response_length,
            pad_token_id,
        )


class AgentLoopManager:
    """The driver's side: rows to workers, answers put together (verl's legacy ``AgentLoopManager``).

    weights: where the policy's weights come from; before sessions are played the server has the newest ones.
    scores: whether workers score rows that bring reward columns, in validation (True) and in training (False).
    step: the training step, of which seeds are made, for rows that do not say it in ``meta_info["global_steps"]``.
    """

    def __init__(
        self,
        config: DictConfig,
        weights: WeightsSource,
        scores: Callable[[bool], bool],
        step: Callable[[], int],
    ) -> None:
        self.config, self.weights, self.scores, self.step = config, weights, scores, step
        self.rollout = weights.rollout

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Roll out B rows of prompts that are already repeated n times; B trajectories in the same order.

        prompts: rows of this trainer (``submission`` and ``session_id``), or of a recipe: ``raw_prompt``,
        ``raw_prompt_ids`` or ``input_ids`` with ``attention_mask``. In ``meta_info``, ``validate`` selects
        ``val_kwargs``, and ``do_sample=False`` decodes greedily; so does a row's ``__do_sample__``.

        Raises ``RolloutError`` naming the uid of a session that fails or does not finish.
        """
        validate = bool(prompts.meta_info.get("validate", False))
        step = prompts.meta_info.get("global_steps")
        step = self.step() if step is None else int(step)
        scored = self.scores(validate)
        requests = [
            SessionRequest(*request, score=scored)
            for request in session_requests(prompts, self.config, step, self.rollout.count_prompts)
        ]
        self.weights.bring_newest()
        started = time.perf_counter()
        played = self._play(requests)
        return answer_in_kind(prompts, played, time.perf_counter() - started)

    def wake_up(self) -> None:
        """Nothing to do: sessions wake the server themselves."""

    def sleep(self) -> None:
        """Give the device's memory back until the next sessions."""
        self.weights.sleep()

    def _play(self, requests: Sequence[SessionRequest]) -> DataProto:
        self.rollout.expect([(request.submission.position, request.session_id) for request in requests])
        calls = [
            agent.generate_sequences.remote([requests[row] for row in rows])
            for agent, rows in self.rollout.shares(len(requests))
        ]
        return DataProto.concat(get(calls, "agent loop"))


def only_output(uid: str, outputs: Sequence[Any]) -> Any:
    """The one output of a session of ``uid``; ``RolloutError`` when there are more."""
    *others, output = outputs
    if others:
        raise RolloutError(
            f"a session of uid {uid} returned {len(others) + 1} outputs; the legacy trainer holds one row a "
            "session: use trainer.use_v1=true for agent loops with several outputs"
        )
    return output
