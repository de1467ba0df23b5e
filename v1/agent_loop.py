"""Agent-loop workers that write every trajectory to TransferQueue and return nothing."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig

from runtime.agent_loop import AgentLoopOutput, SessionRunner, Submission, as_trajectories
from runtime.errors import VerliftError
from runtime.identity import TrajectoryKey
from runtime.rollout.types import SamplingParams
from runtime.trajectories import TrajectoryBatch
from v1 import data_plane

FINISHED, FAILURE = "finished", "failure"
"""The ``status`` of a prompt's own key, written only after every one of its sessions has settled."""

SUCCESS = "success"
"""The ``status`` of a trajectory."""


class AgentLoopWorker:
    """An asyncio Ray actor that expands a prompt into n sessions (verl's ``AgentLoopWorkerTQ``)."""

    def __init__(self, config: DictConfig, server: Any) -> None:
        self.config, self.server = config, server

    async def start(self) -> None:
        """Load what sessions need. Not in the constructor: there Ray would hide the type of an error."""
        self.runner = SessionRunner(self.config, self.server)
        data_plane.connect()

    async def generate_sequences(
        self,
        submissions: list[Submission],
        n: int,
        sessions: Mapping[int, SamplingParams],
        partition_id: str,
        global_steps: int,
    ) -> None:
        """Play the sessions of each prompt; outputs go to ``{uid}_{session_id}_{index}``, a prompt's end to ``uid``.

        n: sessions that are trained on; one more is the greedy baseline, of which only the reward is kept.
        """
        await asyncio.gather(
            *(self._run_prompt(submission, n, sessions, partition_id, global_steps) for submission in submissions)
        )

    async def _run_prompt(
        self,
        submission: Submission,
        n: int,
        params: Mapping[int, SamplingParams],
        partition_id: str,
        global_steps: int,
    ) -> None:
        tag = {"status": FINISHED, "global_steps": global_steps}
        try:
            sessions = with_baseline(await self.runner.run_prompt(submission, params), n)
            await asyncio.to_thread(put_sessions, submission, sessions, self.runner.limits, partition_id, global_steps)
        except Exception as error:
            tag |= {"status": FAILURE, "error": _describe(error), "error_type": _error_type(error)}
        await asyncio.to_thread(data_plane.put_tag, submission.uid, partition_id, tag)


def with_baseline(sessions: list[list[AgentLoopOutput]], n: int) -> list[list[AgentLoopOutput]]:
    """The first n sessions, each output with the reward of the session after them, when there is one."""
    played, greedy = sessions[:n], sessions[n:]
    if not greedy:
        return played
    baseline = greedy[0][-1].reward_score
    return [[replace(output, reward_baseline=baseline) for output in outputs] for outputs in played]


def put_sessions(
    submission: Submission,
    sessions: list[list[AgentLoopOutput]],
    limits: tuple[int, int],
    partition_id: str,
    global_steps: int,
) -> None:
    """Write the outputs of all sessions of one prompt in one call."""
    placed = [
        (TrajectoryKey(submission.uid, session_id, index), output)
        for session_id, outputs in enumerate(sessions)
        for index, output in enumerate(outputs)
    ]
    sample = {**submission.sample, "uid": submission.uid}
    keys, outputs = zip(*placed, strict=True)
    batch = as_trajectories(keys, outputs, [sample] * len(placed), limits)
    data_plane.put_rows(batch, partition_id, row_tags(batch, global_steps))


def row_tags(batch: TrajectoryBatch, global_steps: int) -> list[dict[str, Any]]:
    """The tags of each finished row: its lengths, and the step of the weights that it was played with."""
    lengths = zip(batch.prompts.lengths.tolist(), batch.responses.lengths.tolist(), strict=True)
    return [
        {
            "prompt_len": prompt,
            "response_len": response,
            "seq_len": prompt + response,
            "status": SUCCESS,
            "global_steps": global_steps,
            "min_global_steps": global_steps,
            "max_global_steps": global_steps,
        }
        for prompt, response in lengths
    ]


def _error_type(error: Exception) -> str:
    return type(getattr(error, "cause", error)).__name__


def _describe(error: Exception) -> str:
    cause = getattr(error, "cause", error)
    return str(cause) if isinstance(cause, VerliftError) else "".join(traceback.format_exception(cause)).strip()
