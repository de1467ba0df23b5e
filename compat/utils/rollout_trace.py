"""``verl.utils.rollout_trace``: traces of agent loops in MLflow or Weave; without a backend nothing is done."""

from __future__ import annotations

import asyncio
import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, ClassVar

from compat.utils.errors import NotBuiltError

BACKENDS = (None, "mlflow", "weave")

_is_traced: ContextVar[bool] = ContextVar("is_traced", default=True)


class RolloutTraceConfig:
    """Where traces of this process go; set once by ``init``."""

    _instance: ClassVar[RolloutTraceConfig | None] = None

    def __init__(self) -> None:
        self.backend: str | None = None
        self.client: Any = None
        self.token2text = False
        self.project_name: str | None = None
        self.experiment_name: str | None = None
        self.max_samples_per_step_per_worker: int | None = None

    @classmethod
    def get_instance(cls) -> RolloutTraceConfig:
        """The one of this process."""
        cls._instance = cls._instance or cls()
        return cls._instance

    @classmethod
    def init(
        cls,
        project_name: str,
        experiment_name: str,
        backend: str | None,
        token2text: bool = False,
        max_samples_per_step_per_worker: int | None = None,
    ) -> None:
        """Set it up, the first time. Raises ``NotBuiltError`` for a backend nobody knows or that is not installed."""
        config = cls.get_instance()
        if config.project_name is not None:
            return
        if backend not in BACKENDS:
            raise NotBuiltError(f"traces go to mlflow, weave or nowhere (null), not to {backend!r}")
        config.client = _client(backend, project_name)
        config.backend, config.token2text = backend, token2text
        config.project_name, config.experiment_name = project_name, experiment_name
        config.max_samples_per_step_per_worker = max_samples_per_step_per_worker

    @classmethod
    def get_backend(cls) -> str | None:
        """``mlflow``, ``weave`` or None."""
        return cls.get_instance().backend

    @classmethod
    def get_client(cls) -> Any:
        """What the backend is called through."""
        return cls.get_instance().client

    @classmethod
    def enable_token2text(cls) -> bool:
        """Whether token ids are shown as text."""
        return cls.get_instance().token2text

    @classmethod
    def reset(cls) -> None:
        """Forget what was set up."""
        cls._instance = None


def _client(backend: str | None, project_name: str) -> Any:
    if backend is None:
        return None
    try:
        module = importlib.import_module(backend)
    except ImportError as error:
        raise NotBuiltError(f"traces are to go to {backend}, which is not installed: pip install {backend}") from error
    if backend == "weave":
        return module.init(project_name)
    module.set_experiment(project_name)
    return module


@contextmanager
def rollout_trace_attr(
    sample_index: int | None = None,
    step: int | None = None,
    rollout_n: int | None = None,
    name: str = "rollout_trace",
    validate: bool = False,
    trace: bool = True,
) -> Iterator[None]:
    """Everything traced in the block has these attributes; nothing is traced in it where ``trace`` is False."""
    config = RolloutTraceConfig.get_instance()
    given = {"sample_index": sample_index, "step": step, "rollout_n": rollout_n}
    attributes = {key: value for key, value in given.items() if value is not None}
    attributes |= {"validate": validate, "experiment_name": config.experiment_name}  # type: ignore[dict-item]
    token = _is_traced.set(trace)
    try:
        with _span(name, attributes) if trace else nullcontext():
            yield
    finally:
        _is_traced.reset(token)


@contextmanager
def _span(name: str, attributes: dict[str, Any]) -> Iterator[Any]:
    """A span of the backend around the block; its handle, or None where there is no backend."""
    config = RolloutTraceConfig.get_instance()
    if config.backend == "mlflow":
        with config.client.start_span(name=name) as span:
            span.set_attributes(attributes)
            yield span
    elif config.backend == "weave":
        with importlib.import_module("weave").attributes(attributes):
            yield None
    else:
        yield None


def rollout_trace_op(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method, a coroutine function or a plain one: its calls are traced with arguments and result."""

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _active():
            return func(*args, **kwargs)
        with _span(func.__qualname__, {"inputs": repr((args[1:], kwargs))}) as span:
            return _noted(span, func(*args, **kwargs))

    @functools.wraps(func)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        if not _active():
            return await func(*args, **kwargs)
        with _span(func.__qualname__, {"inputs": repr((args[1:], kwargs))}) as span:
            return _noted(span, await func(*args, **kwargs))

    return call_async if asyncio.iscoroutinefunction(func) else call


def _active() -> bool:
    return RolloutTraceConfig.get_backend() is not None and _is_traced.get()


def _noted(span: Any, output: Any) -> Any:
    if span is not None:
        span.set_outputs(repr(output))
    return output
