"""``verl.utils.profiler.performance``: seconds of stages, memory of the device."""

from __future__ import annotations

import datetime
import functools
import inspect
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from compat.utils.device import get_device_name, get_torch_device, is_cuda_available
from compat.utils.loggers import DecoratorLoggerBase

BYTES = {"GB": 2**30, "MB": 2**20, "KB": 2**10}


@contextmanager
def simple_timer(name: str, timing_raw: dict[str, float]) -> Iterator[None]:
    """Add the seconds that the block takes to ``timing_raw[name]``; nothing is added where it raises."""
    started = time.perf_counter()
    yield
    timing_raw[name] = timing_raw.get(name, 0) + time.perf_counter() - started


@contextmanager
def marked_timer(
    name: str,
    timing_raw: dict[str, float],
    color: str | None = None,  # noqa: ARG001  (colour, domain and category are of markers for nsys)
    domain: str | None = None,  # noqa: ARG001
    category: str | None = None,  # noqa: ARG001
) -> Iterator[None]:
    """:func:`simple_timer`, and a named range in traces of ``torch.profiler``."""
    with torch.profiler.record_function(name), simple_timer(name, timing_raw):
        yield


def reduce_timing(
    timing_raw: dict[str, float], reduce_op: dist.ReduceOp.RedOpType = dist.ReduceOp.AVG
) -> dict[str, float]:
    """Seconds of each stage, reduced over ranks (a collective call); as they are where there are no ranks."""
    if not dist.is_initialized():
        return timing_raw
    names = sorted(timing_raw)
    average = reduce_op == dist.ReduceOp.AVG  # gloo has no average
    seconds = torch.tensor([timing_raw[name] for name in names], device=get_device_name())
    dist.all_reduce(seconds, op=dist.ReduceOp.SUM if average else reduce_op)
    seconds = seconds / dist.get_world_size() if average else seconds
    return dict(zip(names, seconds.tolist(), strict=True))


def gather_timing(timing_raw: dict[str, float]) -> dict[str, list[float]]:
    """Seconds of each stage on every rank (a collective call)."""
    if not dist.is_initialized():
        return {name: [seconds] for name, seconds in timing_raw.items()}
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, timing_raw)
    return {name: [seconds[name] for seconds in of_ranks] for name in sorted(timing_raw)}


def topk_reduce_ratio_min_max(timing: float, k: int = 10) -> tuple[float, float, float]:
    """Over ranks: the share of those above the (100 - k)th percentile, the least and the most; -1 without ranks."""
    if not dist.is_initialized():
        return -1.0, -1.0, -1.0
    seconds = torch.tensor(gather_timing({"it": timing})["it"])
    above = seconds > torch.quantile(seconds, 1 - k / 100)
    return float(above.float().mean()), float(seconds.min()), float(seconds.max())


def _get_current_mem_info(unit: str = "GB", precision: int = 2) -> tuple[str, str, str, str]:
    """GPU memory allocated, reserved, used and there, as text; zeros on a CPU."""
    if not is_cuda_available:
        return ("0.00",) * 4
    device = get_torch_device()
    free, total = device.mem_get_info()
    amounts = device.memory_allocated(), device.memory_reserved(), total - free, total
    allocated, reserved, used, there = (f"{amount / BYTES[unit]:.{precision}f}" for amount in amounts)
    return allocated, reserved, used, there


def _memory_line(head: str) -> str:
    allocated, reserved, used, total = _get_current_mem_info()
    return (
        f"{head}, memory allocated (GB): {allocated}, memory reserved (GB): {reserved}, "
        f"device memory used/total (GB): {used}/{total}"
    )


def log_gpu_memory_usage(
    head: str, logger: logging.Logger | None = None, level: int = logging.DEBUG, rank: int | None = 0
) -> None:
    """Print or log the GPU's memory on one rank, or on all where ``rank`` is None."""
    if not dist.is_initialized() or rank is None or dist.get_rank() == rank:
        print(_memory_line(head)) if logger is None else logger.log(level, _memory_line(head))


class GPUMemoryLogger(DecoratorLoggerBase):
    """Decorates a function: the GPU's memory is logged before and after each call."""

    def __init__(
        self,
        role: str,
        logger: logging.Logger | None = None,
        level: int = logging.DEBUG,
        log_only_rank_0: bool = True,
    ) -> None:
        rank = dist.get_rank() if dist.is_initialized() else 0
        super().__init__(role, logger, level, rank, log_only_rank_0)

    def __call__(self, decorated_function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(decorated_function)
        def with_log(*args: Any, **kwargs: Any) -> Any:
            return self.log(decorated_function, *args, **kwargs)

        return with_log

    def log(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``func`` with a line before and after."""
        self.logging_function(_memory_line(f"Before {func.__name__}"))
        output = func(*args, **kwargs)
        self.logging_function(_memory_line(f"After {func.__name__}"))
        return output


def log_print(ctn: Any) -> None:
    """Print with the time and the caller's place before it."""
    caller = inspect.stack()[1]
    place = f"{caller.filename.rpartition('/')[2]}:{caller.lineno}:{caller.function}"
    print(f"[{datetime.datetime.now():%Y-%m-%d %H:%M:%S}-{place}]: {ctn}")
