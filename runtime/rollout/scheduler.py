"""Between agent loops, which wait side by side, and a generator, which takes one batch at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from runtime.errors import RolloutError
from runtime.rollout.queues import ArrivalQueue, Pending, RequestQueue, Session, WaveQueue, session_names
from runtime.rollout.types import GenerationOutput, GenerationRequest, Generator

Result = TypeVar("Result")


class RequestScheduler:
    """Batches the requests of concurrent agent loops and answers each of them.

    generator: touched in ``compute`` only. compute: an executor of one thread, so that the event loop stays free.
    deterministic: see ``queues``. max_num_seqs: requests of a batch. timeout_s: how long requests wait without anything
    happening before they are given up.
    """

    def __init__(
        self,
        generator: Generator,
        compute: Executor,
        *,
        deterministic: bool,
        max_num_seqs: int,
        timeout_s: float,
    ) -> None:
        self._generator = generator
        self._compute = compute
        self._timeout_s = timeout_s
        self._queue: RequestQueue = (WaveQueue if deterministic else ArrivalQueue)(max_num_seqs)
        self._changed = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None

    async def generate(self, request: GenerationRequest) -> GenerationOutput:
        """Wait for the answer to ``request``.

        Raises RolloutError, naming the request, when its batch fails or what it waits for never comes.
        """
        pending = Pending(request, asyncio.get_running_loop().create_future())
        self._queue.add(pending)
        self._changed.set()
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return await pending.answer

    def expect(self, sessions: Iterable[Session]) -> None:
        """Learn the sessions of a step before any of their requests."""
        self._queue.expect(sessions)

    def finish(self, session: Session) -> None:
        """Learn that ``session`` has ended, well or badly."""
        self._queue.finish(session)
        self._changed.set()

    async def call(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Run ``function(*arguments)`` on the generator's thread, between two batches."""
        return await asyncio.get_running_loop().run_in_executor(self._compute, function, *arguments)

    async def _run(self) -> None:
        """Answer until nothing waits."""
        await asyncio.sleep(self._queue.window_s)
        while len(self._queue):
            if self._queue.missing():
                await self._wait_for_more()
                continue
            for batch in self._queue.take():
                await self._answer(batch)

    async def _answer(self, batch: Sequence[Pending]) -> None:
        try:
            outputs = await self.call(self._generator.generate, [pending.request for pending in batch])
            for pending, output in zip(batch, outputs, strict=True):
                if not pending.answer.done():  # its agent loop may have been cancelled
                    pending.answer.set_result(output)
        except Exception as error:  # whatever it was, no agent loop may wait for ever
            _fail(batch, f"its batch of {len(batch)} failed: {type(error).__name__}: {error}", error)

    async def _wait_for_more(self) -> None:
        """Wait for a request or an ended session; after ``timeout_s`` fail, since a smaller wave is another batch."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), self._timeout_s)
        except TimeoutError:
            missing = self._queue.missing()
            for session in missing:
                self._queue.finish(session)
            reason = (
                f"gave up after {self._timeout_s:g} s without news of {session_names(missing)}; look at its agent "
                "loop, or raise runtime.rollout_timeout_s"
            )
            for batch in self._queue.take():
                _fail(batch, reason)


def _fail(batch: Sequence[Pending], reason: str, cause: Exception | None = None) -> None:
    for pending in batch:
        if not pending.answer.done():
            error = RolloutError(f"request {pending.request.request_id!r}: {reason}")
            error.__cause__ = cause
            pending.answer.set_exception(error)
