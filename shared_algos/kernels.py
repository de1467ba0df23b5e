"""Loops over the rows of a packed column, compiled by numba for tensors on the CPU.

Each loop does what the torch expression beside its call does, to the last bit: a row is worked through in order and by
one thread, numba neither reorders floating-point operations nor fuses a product with a sum. Tensors elsewhere, and
dtypes that numba does not know, take the torch expression.

numba is imported and a loop compiled when it is first called, so that importing this package stays fast; the machine
code is cached on disk where numba finds a folder to write to. Threads are Python's, as the loops run without the
interpreter lock: numba's own thread pools end a process that forks after using them or that calls them from two
threads.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from itertools import pairwise
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

logger = logging.getLogger(__name__)

Array: TypeAlias = np.ndarray[Any, Any]
Loop: TypeAlias = Callable[..., None]
"""``(first, last, offsets, *inputs, out)``: writes what ``out`` has of the rows ``first`` to ``last - 1``."""

TOKENS_A_PART = 1 << 17
"""At least 0.1 ms of work; waking a thread costs a third of that."""

DTYPES = frozenset({torch.float32, torch.float64, torch.int64, torch.bool})
"""What the loops read and write."""


def take(*columns: Tensor) -> bool:
    """Whether the loops take these columns: plain tensors ``[N]`` on the CPU, of ``DTYPES``.

    Not where a gradient is wanted: autograd does not see into a loop.
    """
    return all(
        type(column) in (Tensor, torch.nn.Parameter)
        and not (column.requires_grad and torch.is_grad_enabled())
        and column.device.type == "cpu"
        and column.layout == torch.strided
        and column.dim() == 1
        and column.dtype in DTYPES
        for column in columns
    )


def one_row(column: Tensor) -> Tensor:
    """Offsets for a loop over a column that is not cut into rows."""
    return torch.tensor([0, len(column)])


def empty(size: int, dtype: torch.dtype) -> Tensor:
    """Room for a loop's result on the CPU, ``[size]``.

    numpy asks the system for huge pages where it can; the first touch of ordinary ones takes longer than most loops.
    """
    return torch.from_numpy(np.empty(size, str(dtype).removeprefix("torch.")))


def _compiled(loop: Loop) -> Callable[..., Tensor]:
    """Turn a loop into ``(offsets [B+1], *inputs, out) -> out``, all tensors or floats, ``out`` newly allocated."""
    compiled: dict[tuple[torch.dtype, ...], Loop] = {}

    @wraps(loop)
    def run(offsets: Tensor, *arguments: Tensor | float) -> Tensor:
        columns = [x for x in (offsets, *arguments) if isinstance(x, Tensor)]
        arrays = [x.contiguous().numpy(force=True) if isinstance(x, Tensor) else x for x in (offsets, *arguments)]
        dtypes = tuple(column.dtype for column in columns)
        if dtypes not in compiled:
            compiled[dtypes] = _compile(loop, arrays)
        _share(compiled[dtypes], arrays)
        return columns[-1]

    return run


def _compile(loop: Loop, arrays: list[Any]) -> Loop:
    """Compile for the dtypes of ``arrays``, from the cache on disk if it is there.

    Under a name of its own: numba keeps one index a name, and two processes that add two signatures to one index at
    the same time can leave an entry that leads to the other's code.
    """
    import numba

    assert isinstance(loop, FunctionType)
    dtypes = [array.dtype.name for array in arrays if isinstance(array, np.ndarray)]
    named = FunctionType(loop.__code__, loop.__globals__, "_".join([loop.__name__, *dtypes]))
    named.__qualname__ = named.__name__
    signature = tuple(map(numba.typeof, (0, 0, *arrays)))
    try:
        return _ready(numba.njit(cache=True, nogil=True)(named), signature)
    except Exception as error:  # no folder to write to, a full disk, a damaged file: a cache must not stop a run
        logger.debug("%s is compiled without a cache: %s", named.__name__, error)
        return _ready(numba.njit(nogil=True)(named), signature)


def _ready(dispatcher: Any, signature: tuple[Any, ...]) -> Loop:
    if not isinstance(dispatcher, FunctionType):  # which it stays with NUMBA_DISABLE_JIT=1
        dispatcher.compile(signature)
    return dispatcher


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="shared_algos")


os.register_at_fork(after_in_child=_pool.cache_clear)  # the threads of the parent are not there


def _share(loop: Loop, arrays: list[Any]) -> None:
    """Run ``loop`` over all rows, cut into parts of about equal tokens for as many threads as torch may use.

    Whoever is free takes the next part, so that a thread that gets no processor holds nobody up.
    """
    offsets = arrays[0]
    rows, tokens = len(offsets) - 1, int(offsets[-1])
    count = tokens // TOKENS_A_PART
    threads = min(torch.get_num_threads(), count)
    if threads < 2:
        loop(0, rows, *arrays)
        return
    cuts = np.searchsorted(offsets, np.linspace(0, tokens, count + 1)[1:-1])
    parts = iter([*pairwise([0, *cuts.tolist(), rows])])

    def work() -> None:
        for first, last in parts:
            loop(first, last, *arrays)

    helpers = [_pool().submit(work) for _ in range(threads - 1)]
    work()
    for helper in helpers:
        if not helper.cancel():
            helper.result()


# A row is sliced before it is read, so that numba need not look for negative indices, and written token by token: an
# assignment of slices takes ten times as long to compile. No branch depends on the mask of a single token.


@_compiled
def row_sums(first: int, last: int, offsets: Array, values: Array, out: Array) -> None:
    """The total of each row ``[B]`` of ``values [T]``."""
    for row in range(first, last):
        total = 0.0
        for value in values[offsets[row] : offsets[row + 1]]:
            total += value
        out[row] = total


@_compiled
def row_counts(first: int, last: int, offsets: Array, mask: Array, out: Array) -> None:
    """The number of ones in each row ``[B]`` of ``mask [T]``."""
    for row in range(first, last):
        ones = 0
        for kept in mask[offsets[row] : offsets[row + 1]]:
            ones += kept
        out[row] = ones


@_compiled
def rows_finite(first: int, last: int, offsets: Array, values: Array, out: Array) -> None:
    """Whether all of each row is finite, bool ``[B]``."""
    for row in range(first, last):
        finite = True
        for value in values[offsets[row] : offsets[row + 1]]:
            finite &= np.isfinite(value)
        out[row] = finite


@_compiled
def nonzero(first: int, last: int, offsets: Array, values: Array, out: Array) -> None:
    """Where ``values [T]`` is not 0, bool ``[T]``."""
    for row in range(first, last):
        of, to = values[offsets[row] : offsets[row + 1]], out[offsets[row] : offsets[row + 1]]
        for i in range(len(to)):
            to[i] = of[i] != 0


@_compiled
def masked(first: int, last: int, offsets: Array, values: Array, mask: Array, out: Array) -> None:
    """``values [T]``, 0 where the mask is 0."""
    for row in range(first, last):
        of, kept = values[offsets[row] : offsets[row + 1]], mask[offsets[row] : offsets[row + 1]]
        to = out[offsets[row] : offsets[row + 1]]
        for i in range(len(to)):
            value = of[i]
            to[i] = value if kept[i] else 0


@_compiled
def masked_row_sums(first: int, last: int, offsets: Array, values: Array, mask: Array, out: Array) -> None:
    """``row_sums`` of the values whose mask is 1."""
    for row in range(first, last):
        of, kept = values[offsets[row] : offsets[row + 1]], mask[offsets[row] : offsets[row + 1]]
        total = 0.0
        for i in range(len(of)):
            total += of[i] if kept[i] else 0.0
        out[row] = total


@_compiled
def masked_row_squares(
    first: int, last: int, offsets: Array, values: Array, mask: Array, center: float, out: Array
) -> None:
    """``masked_row_sums`` of ``(values - center)**2``."""
    for row in range(first, last):
        of, kept = values[offsets[row] : offsets[row + 1]], mask[offsets[row] : offsets[row + 1]]
        total = 0.0
        for i in range(len(of)):
            deviation = of[i] - center
            total += deviation * deviation if kept[i] else 0.0
        out[row] = total


@_compiled
def masked_scale(
    first: int, last: int, offsets: Array, values: Array, mask: Array, center: float, scale: float, out: Array
) -> None:
    """``(values - center) * scale``, ``[T]``, 0 where the mask is 0."""
    for row in range(first, last):
        of, kept = values[offsets[row] : offsets[row + 1]], mask[offsets[row] : offsets[row + 1]]
        to = out[offsets[row] : offsets[row + 1]]
        for i in range(len(to)):
            scaled = (of[i] - center) * scale
            to[i] = scaled if kept[i] else 0.0


@_compiled
def spread(first: int, last: int, offsets: Array, per_row: Array, out: Array) -> None:
    """``per_row [B]`` repeated over each row's tokens, ``[T]``."""
    for row in range(first, last):
        value, to = per_row[row], out[offsets[row] : offsets[row + 1]]
        for i in range(len(to)):
            to[i] = value


@_compiled
def masked_spread(first: int, last: int, offsets: Array, per_row: Array, mask: Array, out: Array) -> None:
    """``spread``, 0 where the mask is 0."""
    for row in range(first, last):
        kept, to = mask[offsets[row] : offsets[row + 1]], out[offsets[row] : offsets[row + 1]]
        value = per_row[row]
        for i in range(len(to)):
            to[i] = value if kept[i] else 0


@_compiled
def following(first: int, last: int, offsets: Array, values: Array, out: Array) -> None:
    """Each token's successor in its row, ``[T]``, 0 after the last."""
    for row in range(first, last):
        of, to = values[offsets[row] : offsets[row + 1]], out[offsets[row] : offsets[row + 1]]
        for i in range(len(to)):
            to[i] = of[i + 1] if i + 1 < len(of) else 0


@_compiled
def reverse_scan(first: int, last: int, offsets: Array, deltas: Array, decay: float, out: Array) -> None:
    """``out[t] = deltas[t] + decay * out[t + 1]``, ``[T]``."""
    for row in range(first, last):
        of, to = deltas[offsets[row] : offsets[row + 1]], out[offsets[row] : offsets[row + 1]]
        running = 0.0
        for i in range(len(to) - 1, -1, -1):
            running = of[i] + decay * running
            to[i] = running


@_compiled
def gae_scan(
    first: int, last: int, offsets: Array, rewards: Array, values: Array, gamma: float, decay: float, out: Array
) -> None:
    """``reverse_scan`` of the TD errors, and the same plus ``values``: ``[2, T]``."""
    for row in range(first, last):
        reward, value = rewards[offsets[row] : offsets[row + 1]], values[offsets[row] : offsets[row + 1]]
        advantages, returns = out[0, offsets[row] : offsets[row + 1]], out[1, offsets[row] : offsets[row + 1]]
        running = following = 0.0
        for i in range(len(value) - 1, -1, -1):
            running = reward[i] + gamma * following - value[i] + decay * running
            following = value[i]
            advantages[i] = running
            returns[i] = running + following


@_compiled
def gather(
    first: int, last: int, kept_offsets: Array, offsets: Array, rows: Array, mask: Array, values: Array, out: Array
) -> None:
    """The values of ``rows [L]`` whose mask is 1: ``[N]``, ``kept_offsets [L+1]`` telling whose is which."""
    for place in range(first, last):
        begin, end = offsets[rows[place]], offsets[rows[place] + 1]
        of, kept = values[begin:end], mask[begin:end]
        to = out[kept_offsets[place] : kept_offsets[place + 1]]
        if len(to) == len(of):
            for i in range(len(to)):
                to[i] = of[i]
        else:
            position = i = 0
            while position < len(to):
                to[position] = of[i]
                position += kept[i]
                i += 1


@_compiled
def gather_sums(
    first: int, last: int, kept_offsets: Array, offsets: Array, rows: Array, mask: Array, values: Array, out: Array
) -> None:
    """``gather``, a value whose mask is 0 added to the nearest kept one before it, or to the first of its row."""
    for place in range(first, last):
        begin, end = offsets[rows[place]], offsets[rows[place] + 1]
        of, kept = values[begin:end], mask[begin:end]
        to = out[kept_offsets[place] : kept_offsets[place + 1]]
        if len(to) == len(of):
            for i in range(len(to)):
                to[i] = 0.0 + of[i]
        elif len(to):
            for i in range(len(to)):
                to[i] = 0.0
            position = -1
            for i in range(len(of)):
                position += kept[i]
                to[max(position, 0)] += of[i]


@_compiled
def scatter(
    first: int, last: int, kept_offsets: Array, offsets: Array, rows: Array, mask: Array, values: Array, out: Array
) -> None:
    """Put what ``gather`` took back among the T tokens, 0 where the mask is 0; other rows of ``out`` are left alone."""
    for place in range(first, last):
        begin, end = offsets[rows[place]], offsets[rows[place] + 1]
        to, kept = out[begin:end], mask[begin:end]
        of = values[kept_offsets[place] : kept_offsets[place + 1]]
        if len(to) == len(of):
            for i in range(len(to)):
                to[i] = of[i]
        elif len(of):
            position = 0
            for i in range(len(to)):
                to[i] = of[min(position, len(of) - 1)] if kept[i] else 0.0
                position += kept[i]
