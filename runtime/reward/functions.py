"""Score functions by file and name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from runtime.errors import RewardError
from runtime.reward.routing import default_compute_score
from runtime.user_code import load_object

ComputeScore = Callable[..., Any]
"""``compute_score(data_source, solution_str, ground_truth, extra_info=None)``, sync or async: a number, or a dict with
``score``. It is called with keywords, so the names bind and the order does not."""


def load_compute_score(
    path: str | os.PathLike[str] | None,
    name: str = "compute_score",
    reward_kwargs: Mapping[str, Any] | None = None,
) -> ComputeScore:
    """Return the user's score function ``name`` of the file ``path``, or the built-in routing when ``path`` is None.

    reward_kwargs: keywords that every call gets besides the four (verl's ``custom_reward_function.reward_kwargs``).
    A function of a file cannot be pickled; a worker loads it itself by path and name.

    Raises RewardError naming path and name.
    """
    function = default_compute_score if path is None else load_object(path, name, RewardError)
    if not callable(function):
        raise RewardError(f"{path}: {name!r} is {type(function).__name__}, not a function")
    return partial(function, **reward_kwargs) if reward_kwargs else function


def accepts(function: ComputeScore, name: str) -> bool:
    """Whether ``function`` can be called with the keyword ``name``; yes where its signature cannot be read."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C
        return True
    return name in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def with_room(function: ComputeScore, arguments: dict[str, Any]) -> dict[str, Any]:
    """``arguments`` without ``extra_info`` where ``function`` has no such parameter, as the first recipes' have not."""
    if accepts(function, "extra_info"):
        return arguments
    return {name: value for name, value in arguments.items() if name != "extra_info"}


def is_async(function: ComputeScore) -> bool:
    """Whether calling ``function`` only makes a coroutine, so that no thread is needed for it."""
    return inspect.iscoroutinefunction(function)


async def call_async(returned: Any) -> Any:
    """What a function returned, once it is there: an object with an async ``__call__`` returns a coroutine."""
    return await returned if inspect.isawaitable(returned) else returned


def describe(function: ComputeScore) -> str:
    """The function's name and file, for messages."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{name} ({code.co_filename})" if code else name
