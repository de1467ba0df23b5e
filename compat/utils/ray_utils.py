"""``verl.utils.ray_utils``: coroutines called from where there is no loop; many objects put at once."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def auto_await(func: Callable[..., Any]) -> Callable[..., Any]:
    """Let a coroutine function be called from anywhere.

    A coroutine that calls it awaits the result. A plain function gets the result itself: without a running event loop
    in this thread, inside one in another (which blocks the loop meanwhile).
    """

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if not inspect.iscoroutine(result):
            return result
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(result)
        frame = inspect.currentframe()
        caller = frame.f_back if frame is not None else None
        if caller is not None and caller.f_code.co_flags & inspect.CO_COROUTINE:
            return result
        with ThreadPoolExecutor(max_workers=1) as pool:
            return pool.submit(asyncio.run, result).result()

    return call


def get_event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this thread; a new one where there is none."""
    try:
        return asyncio.get_event_loop_policy().get_event_loop()
    except RuntimeError:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        return loop


def parallel_put(data_list: Sequence[Any], max_workers: int | None = None) -> list[Any]:
    """``ray.put`` of each, several at a time; references in the order of ``data_list``."""
    import ray

    with ThreadPoolExecutor(max_workers=max_workers or min(len(data_list), 16) or 1) as pool:
        return list(pool.map(ray.put, data_list))


def ray_noset_visible_devices(env_vars: Mapping[str, str] = os.environ) -> bool:
    """Whether Ray was told to leave the list of visible devices alone."""
    return any(value for name, value in env_vars.items() if name.startswith("RAY_EXPERIMENTAL_NOSET_"))
