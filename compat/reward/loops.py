"""Coroutines run to their end from code that is not async."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_all(
    coroutines: Sequence[Coroutine[Any, Any, Result]], loop: asyncio.AbstractEventLoop | None = None
) -> list[Result]:
    """What ``coroutines``, run at once, return, in order.

    loop: the one they belong to; ``None``: a new one. Where this thread runs a loop already, another thread does it.
    """

    async def gathered() -> list[Result]:
        return list(await asyncio.gather(*coroutines))

    def run() -> list[Result]:
        if loop is None or loop.is_running() or loop.is_closed():
            return asyncio.run(gathered())
        return loop.run_until_complete(gathered())

    if not _in_loop():
        return run()
    results: list[list[Result]] = []
    failures: list[BaseException] = []

    def attempt() -> None:
        try:
            results.append(run())
        except BaseException as error:  # handed to the caller
            failures.append(error)

    thread = threading.Thread(target=attempt, name="reward-loop")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def event_loop() -> asyncio.AbstractEventLoop:
    """The running loop, or a new one that nobody runs yet."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.new_event_loop()


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
