"""What an agent loop is given and what it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from omegaconf import DictConfig
from transformers import PreTrainedTokenizerBase

from runtime.errors import RolloutError
from runtime.identity import PromptIdentity
from runtime.rollout.types import GenerationOutput, GenerationRequest, RequestOrder, SamplingParams


@dataclass(frozen=True)
class Session:
    """One of the n tries at a prompt.

    position: place of the prompt in its batch; with session_id and turn it orders requests canonically.
    where: file and row of the prompt, for messages.
    """

    identity: PromptIdentity
    position: int
    session_id: int
    where: str


@dataclass(frozen=True)
class AgentLoopOutput:
    """One output of a session (verl's ``AgentLoopOutput``).

    prompt_ids: tokens that the model was first given. response_ids: model and observation tokens after them.
    response_mask: 1 for tokens that the model generated, 0 for observations. response_logprobs: of the sampled tokens,
    0 at observations. reward_score: the outcome, when the loop scored itself. num_turns: user and assistant turns.
    reward_baseline: the outcome of a greedy session of the same prompt, filled in by the worker for ReMax.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None = None
    reward_score: float | None = None
    num_turns: int = 2
    reward_baseline: float | None = None
    extra_fields: Mapping[str, Any] = field(default_factory=dict)


class GenerationClient:
    """The rollout server as one session sees it: it numbers the turns, and seeds and orders each request by them."""

    def __init__(self, server: Any, session: Session, params: SamplingParams) -> None:
        self._server = server
        self.session = session
        self._params = params
        self._turn = 0

    async def generate(self, prompt_ids: list[int], **changes: Any) -> GenerationOutput:
        """Continue ``prompt_ids``; ``changes`` override single sampling parameters for this turn."""
        session, turn = self.session, self._turn
        self._turn += 1
        request = GenerationRequest(
            request_id=f"{session.identity.uid}_{session.session_id}_{turn}",
            prompt_ids=prompt_ids,
            params=replace(self._params, seed=session.identity.request_seed(session.session_id, turn), **changes),
            order=RequestOrder(session.position, session.session_id, turn),
        )
        return await self._server.generate.remote(request)


class AgentLoopBase(ABC):
    """A conversation between a model and an environment; one object a session."""

    def __init__(self, client: GenerationClient, tokenizer: PreTrainedTokenizerBase, config: DictConfig) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.config = config

    @abstractmethod
    async def run(self, sample: Mapping[str, Any]) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Play the session of one dataset row, which holds ``raw_prompt`` and the row's other columns."""


class AgentLoopRegistry:
    """Agent loop classes by the name that ``rollout.agent.default_agent_loop`` or a row's ``agent_name`` gives."""

    def __init__(self) -> None:
        self._classes: dict[str, type[AgentLoopBase]] = {}

    def register(self, name: str):
        """Class decorator that files a loop under ``name``; the same class twice is a no-op, another one an error."""

        def file(loop_class: type[AgentLoopBase]) -> type[AgentLoopBase]:
            known = self._classes.get(name, loop_class)
            if (known.__module__, known.__qualname__) != (loop_class.__module__, loop_class.__qualname__):
                raise RolloutError(
                    f"agent loop {name!r} is registered already, by {known.__module__}.{known.__qualname__}"
                )
            self._classes[name] = loop_class
            return loop_class

        return file

    def get(self, name: str) -> type[AgentLoopBase]:
        if name not in self._classes:
            raise RolloutError(f"no agent loop {name!r}; there are {sorted(self._classes)}")
        return self._classes[name]


AGENT_LOOPS = AgentLoopRegistry()
