"""Which of the waiting requests are decoded next: the two policies of ``rollout.deterministic``."""

from __future__ import annotations

from asyncio import Future
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from runtime.errors import RolloutError
from runtime.rollout.types import GenerationOutput, GenerationRequest

Session = tuple[int, int]
"""(position of the prompt in its batch, session_id)."""


@dataclass(frozen=True, eq=False)
class Pending:
    """A request and the future that its agent loop awaits."""

    request: GenerationRequest
    answer: Future[GenerationOutput]


class RequestQueue(Protocol):
    """Requests that wait for an answer. Only the event loop's thread uses it."""

    window_s: float
    """Seconds to let more requests arrive before the first batch is taken."""

    def __len__(self) -> int: ...

    def expect(self, sessions: Iterable[Session]) -> None:
        """Learn which sessions will ask."""
        ...

    def finish(self, session: Session) -> None:
        """Learn that ``session`` will not ask again."""
        ...

    def add(self, pending: Pending) -> None:
        """Let one request wait."""
        ...

    def missing(self) -> list[Session]:
        """The sessions whose requests those here have to wait for."""
        ...

    def take(self) -> list[list[Pending]]:
        """Remove what is to be decoded now, cut into batches of at most ``max_num_seqs``."""
        ...


class ArrivalQueue:
    """``rollout.deterministic=false``: whatever has arrived is decoded next, first come, first served."""

    # Agent loops start within milliseconds of each other; without a pause the first would be decoded alone.
    window_s = 0.02

    def __init__(self, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._waiting: deque[Pending] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, sessions: Iterable[Session]) -> None:
        """Nothing: no request waits for another."""

    def finish(self, session: Session) -> None:
        """Nothing: no request waits for another."""

    def add(self, pending: Pending) -> None:
        self._waiting.append(pending)

    def missing(self) -> list[Session]:
        return []

    def take(self) -> list[list[Pending]]:
        """One batch only: those that arrive while it is decoded may fill up the next."""
        size = min(self._max_num_seqs, len(self._waiting))
        return [[self._waiting.popleft() for _ in range(size)]]


class WaveQueue:
    """``rollout.deterministic=true``: decodes in waves, each one request of every live session, sorted canonically.

    A session is live from ``expect`` to ``finish``. Neither the order of arrival nor how long a tool call takes can
    change a wave, so two runs of the same sessions decode the same batches.
    """

    window_s = 0.0

    def __init__(self, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._live: set[Session] = set()
        self._waiting: dict[Session, Pending] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, sessions: Iterable[Session]) -> None:
        """Raises RolloutError when a session of an earlier step is still live: it would hold up every later wave."""
        sessions = set(sessions)
        if self._live:
            raise RolloutError(
                f"a new step expects {len(sessions)} sessions, but {session_names(self._live)} of the last one did not "
                "finish; finish(session) must follow every session, failed ones too"
            )
        self._live = sessions

    def finish(self, session: Session) -> None:
        """Harmless for a session that is not live: a failed one is finished by its agent loop after it was given up."""
        self._live.discard(session)

    def add(self, pending: Pending) -> None:
        """Raises RolloutError for a session that is not live, or whose last request is still waiting."""
        request = pending.request
        session = request.order.session
        if session not in self._live:
            raise RolloutError(
                f"request {request.request_id!r}: {session_names([session])} was not expected in this step, or was "
                "given up; rollout.deterministic=true needs expect(sessions) before the first request"
            )
        if session in self._waiting:
            raise RolloutError(
                f"request {request.request_id!r}: {session_names([session])} is already waiting for request "
                f"{self._waiting[session].request.request_id!r}; with rollout.deterministic=true a session asks for "
                "one turn at a time"
            )
        self._waiting[session] = pending

    def missing(self) -> list[Session]:
        return sorted(self._live - self._waiting.keys())

    def take(self) -> list[list[Pending]]:
        """The whole wave. Where it is cut depends on its length alone."""
        wave = sorted(self._waiting.values(), key=lambda pending: pending.request.order)
        self._waiting.clear()
        return [wave[start : start + self._max_num_seqs] for start in range(0, len(wave), self._max_num_seqs)]


def session_names(sessions: Iterable[Session]) -> str:
    """Sessions as a message names them, the first five in full."""
    ordered = sorted(sessions)
    shown = ", ".join(f"session {session_id} of prompt {prompt}" for prompt, session_id in ordered[:5])
    return shown + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")
