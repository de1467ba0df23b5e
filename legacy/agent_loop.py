"""Agent-loop workers that return one padded ``DataProto``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig

from compat.protocol import DataProto
from compat.rows import to_dataproto
from runtime.agent_loop import AgentLoopOutput, SessionRunner, Submission, as_trajectories
from runtime.agent_loop.runner import session_params, unfinished
from runtime.errors import RolloutError
from runtime.identity import TrajectoryKey
from runtime.trainer.workers import Workers
from runtime.workers.group import get


class AgentLoopWorker:
    """An asyncio Ray actor that plays one session a row (verl's legacy ``AgentLoopWorker``)."""

    def __init__(self, config: DictConfig, server: Any) -> None:
        self.config, self.server = config, server

    async def start(self) -> None:
        """Load what sessions need. Not in the constructor: there Ray would hide the type of an error."""
        self.runner = SessionRunner(self.config, self.server)

    async def generate_sequences(
        self, submissions: Sequence[Submission], session_ids: Sequence[int], validate: bool
    ) -> DataProto:
        """One trajectory a submission, in the order given, padded to ``data.max_{prompt,response}_length``."""
        params = session_params(self.config, validate)
        sessions = [
            asyncio.create_task(self.runner.run_session(submission, session_id, params[session_id]))
            for submission, session_id in zip(submissions, session_ids, strict=True)
        ]
        _, late = await asyncio.wait(sessions, timeout=self.config.runtime.rollout_timeout_s)
        if late:
            uids = [s.uid for s, session in zip(submissions, sessions, strict=True) if session in late]
            raise unfinished(uids, len({submission.uid for submission in submissions}), self.config)
        outputs = [
            _only_output(submission, session.result())
            for submission, session in zip(submissions, sessions, strict=True)
        ]
        keys = [TrajectoryKey(s.uid, session_id, 0) for s, session_id in zip(submissions, session_ids, strict=True)]
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
    """The driver's side: rows to workers, answers put together (verl's legacy ``AgentLoopManager``)."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Roll out B rows of prompts that are already repeated n times; B trajectories in the same order.

        prompts: ``submission`` (a ``Submission`` a row) and ``session_id`` in ``non_tensor_batch``; ``validate`` in
        ``meta_info`` selects ``val_kwargs``.
        """
        submissions = list(prompts.non_tensor_batch["submission"])
        session_ids = [int(number) for number in prompts.non_tensor_batch["session_id"]]
        self.workers.expect([(s.position, session_id) for s, session_id in zip(submissions, session_ids, strict=True)])
        validate = bool(prompts.meta_info.get("validate", False))
        calls = []
        for agent, rows in self.workers.shares(len(submissions)):
            share = [submissions[row] for row in rows]
            calls.append(agent.generate_sequences.remote(share, [session_ids[row] for row in rows], validate))
        return DataProto.concat(get(calls, "agent loop"))


def _only_output(submission: Submission, outputs: Sequence[AgentLoopOutput]) -> AgentLoopOutput:
    *others, output = outputs
    if others:
        raise RolloutError(
            f"a session of uid {submission.uid} returned {len(others) + 1} outputs; the legacy trainer holds one row a "
            "session: use trainer.use_v1=true for agent loops with several outputs"
        )
    return output
