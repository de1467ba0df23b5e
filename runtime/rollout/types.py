"""What agent loops and rollout engines say to each other: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from runtime.errors import ConfigError, RolloutError

StopReason = Literal["stop", "length"]


@dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled; the names and the meaning of the values are verl's and vLLM's.

    temperature: divides the logits; 0 is greedy. top_k: keep the k largest logits, -1 for all (``rollout.top_k``).
    top_p: of those, keep the smallest set that holds this much probability. max_tokens: longest response, in tokens.
    do_sample: False is greedy. logprobs: return a log-prob for every response token. ignore_eos: never stop early.
    seed: of this request alone, see ``PromptIdentity.request_seed``.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    do_sample: bool = True
    logprobs: bool = False
    ignore_eos: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}; a response has at least 1 token")
        if self.temperature < 0:
            raise ConfigError(f"temperature is {self.temperature}; use a positive number, or 0 for greedy")
        if self.top_k < -1:
            raise ConfigError(f"top_k is {self.top_k}; use a positive number, or -1 for the whole vocabulary")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; use a number above 0 and at most 1")
        if not 0 <= self.seed < 2**64:
            raise ConfigError(f"seed is {self.seed}; use a number from 0 to 2**64 - 1")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken; its log-probs are then those of temperature 1."""
        return not self.do_sample or self.temperature == 0


class RequestOrder(NamedTuple):
    """The place of a request in canonical order; never of when it arrived."""

    prompt: int
    """Position of the prompt in its batch."""
    session_id: int
    turn: int = 0

    @property
    def session(self) -> tuple[int, int]:
        """(prompt position, session_id), which all turns of one session share."""
        return (self.prompt, self.session_id)


@dataclass(frozen=True)
class GenerationRequest:
    """One turn to generate.

    request_id: names it in errors. prompt_ids: the whole conversation so far, as token ids.
    """

    request_id: str
    prompt_ids: Sequence[int]
    params: SamplingParams
    order: RequestOrder

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise RolloutError(f"request {self.request_id!r} has an empty prompt; give it at least one token")


@dataclass(frozen=True)
class GenerationOutput:
    """A response. token_ids ``[R]`` includes the eos token that ended it; log_probs ``[R]`` when they were asked for.

    stop_reason: ``stop`` after an eos token, ``length`` after ``max_tokens``.
    """

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: StopReason


class Generator(Protocol):
    """What a rollout engine offers to the server; every call comes from one thread."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        """Answer a batch, in the order of ``requests``."""
        ...

    def update_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Replace every weight, by its Hugging Face name."""
        ...

    def sleep(self) -> None:
        """Give device memory back until ``wake_up``."""
        ...

    def wake_up(self) -> None:
        """Undo ``sleep``."""
        ...
