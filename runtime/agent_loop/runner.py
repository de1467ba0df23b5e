"""Runs sessions inside a Ray actor: builds the loop, plays it, scores the result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from omegaconf import DictConfig

from runtime.agent_loop import replay as _replay  # noqa: F401  (registers a built-in loop)
from runtime.agent_loop import single_turn as _single_turn  # noqa: F401  (registers a built-in loop)
from runtime.agent_loop.base import AGENT_LOOPS, AgentLoopOutput, GenerationClient, Session
from runtime.config.roles import plays_baseline
from runtime.data.chat import load_tokenizer
from runtime.errors import RolloutError
from runtime.identity import PromptIdentity
from runtime.recipe import import_modules
from runtime.reward import RewardItem, RewardManager, build_reward_manager
from runtime.rollout.types import SamplingParams


@dataclass(frozen=True)
class Submission:
    """One prompt sent to rollout: its dataset row, its identity, its place in the batch, and its file and row."""

    identity: PromptIdentity
    position: int
    sample: Mapping[str, Any]
    where: str

    @property
    def uid(self) -> str:
        return self.identity.uid


class SessionRunner:
    """What an agent-loop worker holds: the tokenizer, the reward manager and the way to the rollout server."""

    def __init__(self, config: DictConfig, server: Any) -> None:
        import_modules(config)
        self.config = config
        self.server = server
        self.tokenizer = load_tokenizer(config.actor_rollout_ref.model)
        self.limits = (config.data.max_prompt_length, config.data.max_response_length)

    @cached_property
    def reward_manager(self) -> RewardManager | None:
        """What scores sessions; ``None``: responses are scored in the stage ``reward``, a whole batch at once.

        Built with the first session to score: where the driver scores, it may not exist in this process.
        """
        return build_reward_manager(self.config, self.tokenizer)

    async def run_prompt(
        self, submission: Submission, sessions: Mapping[int, SamplingParams]
    ) -> list[list[AgentLoopOutput]]:
        """Play sessions of one prompt at once, each by its parameters; each one's outputs, in the order given.

        The first error is raised only after every session has settled, so that none is left running.
        """
        played = await asyncio.gather(
            *(self.run_session(submission, session_id, params) for session_id, params in sessions.items()),
            return_exceptions=True,
        )
        for outcome in played:
            if isinstance(outcome, BaseException):
                raise outcome
        return played  # type: ignore[return-value]

    async def run_session(
        self, submission: Submission, session_id: int, params: SamplingParams, score: bool = True
    ) -> list[AgentLoopOutput]:
        """Play one session and, unless ``score`` says that somebody else will, score its last output."""
        session = Session(submission.identity, submission.position, session_id, submission.where)
        name = submission.sample.get("agent_name") or self.config.actor_rollout_ref.rollout.agent.default_agent_loop
        # Whatever happens, the server hears that the session has ended: others may wait for its next request.
        try:
            loop = AGENT_LOOPS.get(name)(GenerationClient(self.server, session, params), self.tokenizer, self.config)
            outputs = await loop.run(submission.sample)
        finally:
            await self.server.finish.remote((session.position, session.session_id))
        outputs = outputs if isinstance(outputs, list) else [outputs]
        if not outputs:
            raise RolloutError(f"agent loop {name!r} returned no output for uid {submission.uid} session {session_id}")
        if not score:
            return list(outputs)
        last = await self._scored(outputs[-1], submission)
        return [*(_sharing_reward(output, last) for output in outputs[:-1]), last]

    async def _scored(self, output: AgentLoopOutput, submission: Submission) -> AgentLoopOutput:
        if output.reward_score is not None or self.reward_manager is None:
            return output
        sample = {**submission.sample, **output.extra_fields}
        result = await self.reward_manager.run_single(
            RewardItem(output.response_ids, sample, output.num_turns, submission.where, output.prompt_ids)
        )
        return replace(
            output,
            reward_score=result.reward_score,
            extra_fields={**output.extra_fields, "reward_extra_info": dict(result.reward_extra_info)},
        )


def _sharing_reward(output: AgentLoopOutput, last: AgentLoopOutput) -> AgentLoopOutput:
    """An earlier output of a session with the session's final reward, unless its loop scored it."""
    if output.reward_score is not None or last.reward_score is None:
        return output
    info = last.extra_fields.get("reward_extra_info", {})
    return replace(
        output, reward_score=last.reward_score, extra_fields={**output.extra_fields, "reward_extra_info": info}
    )


def unfinished(uids: Iterable[str], prompts: int, config: DictConfig) -> RolloutError:
    """The error of prompts that have not finished within ``runtime.rollout_timeout_s``; it names up to five uids."""
    late = list(dict.fromkeys(uids))
    return RolloutError(
        f"{len(late)} of {prompts} prompts have not finished after {config.runtime.rollout_timeout_s:g} s: uid "
        f"{', '.join(late[:5])}; look at their agent loop and reward function, or raise runtime.rollout_timeout_s"
    )


def sessions_each(config: DictConfig, validate: bool = False) -> int:
    """n: the sessions of each prompt that are trained on, or scored in validation."""
    rollout = config.actor_rollout_ref.rollout
    return rollout.val_kwargs.n if validate else rollout.n


def session_params(config: DictConfig, validate: bool = False) -> dict[int, SamplingParams]:
    """The sessions of each prompt and their sampling: 0 to n-1 and, in training, the greedy baseline of ReMax as n."""
    n = sessions_each(config, validate)
    sessions = dict.fromkeys(range(n), sampling_params(config, validate))
    if plays_baseline(config) and not validate:
        sessions[n] = replace(sessions[0], do_sample=False)
    return sessions


def sampling_params(config: DictConfig, validate: bool = False) -> SamplingParams:
    """Sampling of training (``rollout.*``) or validation (``rollout.val_kwargs.*``); a request sets its own seed."""
    rollout = config.actor_rollout_ref.rollout
    source = rollout.val_kwargs if validate else rollout
    return SamplingParams(
        temperature=source.temperature,
        top_k=source.top_k,
        top_p=source.top_p,
        do_sample=source.do_sample,
        max_tokens=rollout.response_length,
        logprobs=rollout.calculate_log_probs,
        ignore_eos=rollout.ignore_eos,
        seed=0,
    )
