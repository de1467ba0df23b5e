"""``verl.utils.py_functional``: dictionaries merged and renamed, functions with a time limit."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from omegaconf import DictConfig, ListConfig

from compat.utils.metric import Metric
from runtime.errors import VerliftError

END_GRACE_S = 0.5
"""How long a process that is told to end may take before it is killed."""


class LimitError(VerliftError, TimeoutError):
    """A function took longer than it was given."""


class ChildError(VerliftError, RuntimeError):
    """The process that ran a function ended without an answer."""


def append_to_dict(data: dict[str, Any], new_data: Mapping[str, Any], prefix: str = "") -> None:
    """Append each value of ``new_data`` (or each of a list) to the list in ``data`` under its name with ``prefix``."""
    for key, value in rename_dict(new_data, prefix).items():
        collected = data.setdefault(key, value.init_list() if isinstance(value, Metric) else [])
        collected.extend(value) if isinstance(value, list) else collected.append(value)


def rename_dict(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The same values under names that begin with ``prefix``."""
    return {key if key.startswith(prefix) else f"{prefix}{key}": value for key, value in data.items()}


def convert_to_regular_types(obj: Any) -> Any:
    """Configs of omegaconf, tuples and all inside them as plain dictionaries and lists."""
    if isinstance(obj, DictConfig | dict):
        return {key: convert_to_regular_types(value) for key, value in obj.items()}
    if isinstance(obj, ListConfig | list | tuple):
        return [convert_to_regular_types(value) for value in obj]
    return obj


def convert_nested_value_to_list_recursive(data_item: Any) -> Any:
    """Arrays inside dictionaries and lists as lists."""
    if isinstance(data_item, dict):
        return {key: convert_nested_value_to_list_recursive(value) for key, value in data_item.items()}
    if isinstance(data_item, np.ndarray):
        data_item = data_item.tolist()
    if isinstance(data_item, list):
        return [convert_nested_value_to_list_recursive(value) for value in data_item]
    return data_item


class NestedNamespace(SimpleNamespace):
    """A dictionary whose keys, at every depth, are attributes."""

    def __init__(self, dictionary: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for key, value in dictionary.items():
            setattr(self, key, NestedNamespace(value) if isinstance(value, dict) else value)


@contextmanager
def temp_env_var(key: str, value: str) -> Iterator[None]:
    """The environment variable has ``value`` inside the block."""
    before = os.environ.get(key)
    os.environ[key] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = before


def timeout_limit(seconds: float, use_signals: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a function: a call that takes longer than ``seconds`` is ended with a ``TimeoutError``.

    It runs in a process of its own, whose exceptions are raised here, or, with ``use_signals``, in this one under an
    alarm, which works in the main thread only.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        run = _under_alarm if use_signals else _in_process

        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            return run(functools.partial(function, *args, **kwargs), seconds, function.__name__)

        return limited

    return decorate


def _under_alarm(call: Callable[[], Any], seconds: float, name: str) -> Any:
    def ring(*_: Any) -> None:
        raise LimitError(f"{name} took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _in_process(call: Callable[[], Any], seconds: float, name: str) -> Any:
    # Forked, so that the function and its arguments need not be importable; an answer may be larger than a pipe holds,
    # so it is read before the process is joined.
    context = multiprocessing.get_context("fork")
    reading, writing = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(call, writing))
    process.start()
    writing.close()
    try:
        if not reading.poll(seconds):
            raise LimitError(f"{name} took longer than {seconds:g} s")
        succeeded, answer = reading.recv()
    except EOFError:
        process.join(END_GRACE_S)
        raise ChildError(f"the process of {name} ended with exit code {process.exitcode} and no answer") from None
    finally:
        process.terminate()
        process.join(END_GRACE_S)
        if process.is_alive():
            process.kill()
            process.join()
        reading.close()
    if succeeded:
        return answer
    raise answer


def _answer(call: Callable[[], Any], pipe: Any) -> None:
    try:
        result = True, call()
    except Exception as error:
        result = False, error
    pipe.send(result)
