"""A loop that plays recorded tokens instead of sampling: the same rollout in every run of one file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.agent_loop.base import AGENT_LOOPS, AgentLoopBase, AgentLoopOutput
from runtime.errors import RolloutError


@AGENT_LOOPS.register("replay_agent")
class ReplayAgentLoop(AgentLoopBase):
    """Returns ``extra_info["sessions"][session_id]`` of the dataset row.

    Each session is a dict with ``prompt_ids`` and ``response_ids``, and optionally ``response_mask``,
    ``response_logprobs`` and ``reward_score``; without a score, the reward function scores the response as usual. A
    session of several outputs is a dict whose ``outputs`` is a list of such dicts.
    """

    async def run(self, sample: Mapping[str, Any]) -> list[AgentLoopOutput]:
        session_id = self.client.session.session_id
        sessions = (sample.get("extra_info") or {}).get("sessions")
        if sessions is None or session_id >= len(sessions):
            raise RolloutError(
                f"{self.client.session.where} has no recorded session {session_id}: extra_info.sessions holds "
                f"{0 if sessions is None else len(sessions)}; record rollout.n of them"
            )
        recorded = sessions[session_id]
        return [_output(output) for output in recorded.get("outputs") or [recorded]]


def _output(recorded: Mapping[str, Any]) -> AgentLoopOutput:
    response_ids = [int(token) for token in recorded["response_ids"]]
    mask = recorded.get("response_mask")
    log_probs = recorded.get("response_logprobs")
    return AgentLoopOutput(
        prompt_ids=[int(token) for token in recorded["prompt_ids"]],
        response_ids=response_ids,
        response_mask=[1] * len(response_ids) if mask is None else [int(value) for value in mask],
        response_logprobs=None if log_probs is None else [float(value) for value in log_probs],
        reward_score=recorded.get("reward_score"),
    )
