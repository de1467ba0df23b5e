"""``verl.utils.profiler``: markers, and a profiler that traces a worker's steps with ``torch.profiler``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from compat.single_controller.decorator import Dispatch, register
from compat.utils.base_config import BaseConfig
from compat.utils.errors import NotBuiltError
from compat.utils.performance import (
    GPUMemoryLogger,
    gather_timing,
    log_gpu_memory_usage,
    marked_timer,
    reduce_timing,
    simple_timer,
)

TOOLS = (None, "torch")


@dataclass
class ProfilerConfig(BaseConfig):
    """``profiler`` of a role's config."""

    tool: str | None = None
    enable: bool = False
    all_ranks: bool = False
    ranks: list[int] = field(default_factory=list)
    save_path: str | None = None
    tool_config: Any = None
    global_tool_config: Any = None

    def union(self, other: ProfilerConfig) -> ProfilerConfig:
        """What either asks for."""
        return ProfilerConfig(
            tool=self.tool or other.tool,
            enable=self.enable or other.enable,
            all_ranks=self.all_ranks or other.all_ranks,
            ranks=sorted({*self.ranks, *other.ranks}),
            save_path=self.save_path or other.save_path,
            tool_config=self.tool_config or other.tool_config,
            global_tool_config=self.global_tool_config or other.global_tool_config,
        )


class DistProfiler:
    """Traces what runs between ``start`` and ``stop`` on the ranks that the config names.

    config.tool: ``torch`` writes one Chrome trace a ``stop`` under ``save_path``. Raises ``NotBuiltError`` for another.
    """

    def __init__(self, rank: int, config: ProfilerConfig | None = None, tool_config: Any = None, **_: Any) -> None:
        self.rank, self.config = rank, config or ProfilerConfig()
        self.tool_config = tool_config or self.config.tool_config
        self._trace: torch.profiler.profile | None = None
        self._traces = 0
        tool = self.config.tool
        if self.config.enable and tool not in TOOLS:
            raise NotBuiltError(f"profiler.tool={tool!r} is not supported: use torch, or run the command under {tool}")

    def check_enable(self) -> bool:
        """Whether anything is profiled."""
        return self.config.enable

    def check_this_rank(self) -> bool:
        """Whether this rank is profiled; rank 0 where the config names none."""
        named = self.config.ranks or ([0] if self.config.enable else [])
        return self.config.all_ranks or self.rank in named

    def check_this_step(self) -> bool:
        """Whether a trace is being taken."""
        return self._trace is not None

    def is_discrete_mode(self) -> bool:
        """False: a trace runs from ``start`` to ``stop``."""
        return False

    def start(self, **_: Any) -> None:
        """Begin a trace."""
        if self.check_enable() and self.check_this_rank() and self.config.tool == "torch":
            self._trace = torch.profiler.profile()
            self._trace.start()

    def stop(self, run_command: bool = True) -> None:  # noqa: ARG002  (verl's command after the last step)
        """End the trace and write it."""
        if self._trace is None:
            return
        self._trace.stop()
        folder = Path(self.config.save_path or "outputs/profile")
        folder.mkdir(parents=True, exist_ok=True)
        self._trace.export_chrome_trace(str(folder / f"rank{self.rank}-{self._traces}.json"))
        self._trace, self._traces = None, self._traces + 1

    def step(self) -> None:
        """Mark the end of a step in the trace."""
        if self._trace is not None:
            self._trace.step()

    @classmethod
    def annotate(cls, message: str | None = None, **_: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorates a worker's method: it is a named range in traces."""
        return mark_annotate(message)


class DistProfilerExtension:
    """Gives a worker ``start_profile``, ``stop_profile`` and ``step_profile``, called on every rank."""

    def __init__(self, profiler: DistProfiler) -> None:
        self.profiler = profiler

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def start_profile(self, **kwargs: Any) -> None:
        """Begin a trace."""
        self.profiler.start(**kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def stop_profile(self, run_command: bool = True) -> None:
        """End the trace."""
        self.profiler.stop(run_command=run_command)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def step_profile(self) -> None:
        """Mark the end of a step."""
        self.profiler.step()


def mark_annotate(message: str | None = None, **_: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a function: it is a named range in traces."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def marked(*args: Any, **kwargs: Any) -> Any:
            with torch.profiler.record_function(message or function.__name__):
                return function(*args, **kwargs)

        return marked

    return decorate


def mark_start_range(message: str | None = None, **_: Any) -> Any:
    """Begin a named range in traces; what it returns ends it."""
    marker = torch.profiler.record_function(message or "range")
    marker.__enter__()
    return marker


def mark_end_range(range_id: Any) -> None:
    """End a range that :func:`mark_start_range` began."""
    range_id.__exit__(None, None, None)


__all__ = [
    "DistProfiler",
    "DistProfilerExtension",
    "GPUMemoryLogger",
    "ProfilerConfig",
    "gather_timing",
    "log_gpu_memory_usage",
    "mark_annotate",
    "mark_end_range",
    "mark_start_range",
    "marked_timer",
    "reduce_timing",
    "simple_timer",
]
