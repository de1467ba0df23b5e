"""Time and memory of two ways to do the same work, side by side."""

from __future__ import annotations

import ctypes
import gc
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch

Call: TypeAlias = Callable[[], Any]


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def milliseconds(calls: dict[str, Call], repeats: int, device: str, clock: str = "wall") -> dict[str, float]:
    """The median of ``repeats`` runs of each call. They take turns, so that what else the machine does hits all.

    clock: ``cpu`` counts the processor time of all threads of this process: on a machine with other work, and with one
    thread, it is what the wall clock would show if there were none.
    """
    now = CLOCKS[clock]
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            _synchronize(device)
            started = now()
            call()
            _synchronize(device)
            times[name].append(1000 * (now() - started))
    return {name: statistics.median(of_one) for name, of_one in times.items()}


def peak_mebibytes(call: Call, device: str) -> float | None:
    """The most memory that a call holds beyond what was held before it, its results included; ``None``: not measured.

    On a GPU, what torch's allocator handed out. On a CPU, resident pages of the process, by Linux's own count: the
    allocator first gives back what earlier calls left it, the high-water mark is reset, and afterwards it is read. What
    was allocated but never touched does not count, nor does what a library keeps for the next call. Elsewhere than on
    Linux nothing is measured.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    if not Path("/proc/self/clear_refs").exists():
        return None
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    call()
    return max(0.0, _status("VmHWM") - before)


def available_mebibytes(device: str) -> float:
    """What may still be allocated."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0] / 2**20
    meminfo = Path("/proc/meminfo")
    return _figure(meminfo, "MemAvailable") if meminfo.exists() else float("inf")


def _status(field: str) -> float:
    return _figure(Path("/proc/self/status"), field)


def _figure(file: Path, field: str) -> float:
    found = re.search(rf"^{field}:\s+(\d+) kB$", file.read_text(), re.MULTILINE)
    assert found is not None, f"{file} has no {field}"
    return int(found[1]) / 1024


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
