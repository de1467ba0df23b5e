"""Read columns of safetensors files piece by piece, so that what is in memory does not grow with the file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from runtime.errors import CaptureError

PIECE = 1 << 20
"""Values that are read at once: 8 MiB of the widest dtype, where a larger piece is no faster."""


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """A safetensors file, open; CaptureError naming it when it is missing or truncated or a tensor is not in it.

    It is mapped into memory, and what was read of it stays resident until it is closed: open it again for each piece.
    """
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (OSError, SafetensorError) as error:
        raise CaptureError(f"{file} cannot be read ({error}); capture the run again") from error


def shape_of(file: Path, name: str) -> tuple[int, ...]:
    """The shape of the tensor ``name`` in ``file``."""
    with opened(file) as tensors:
        return tuple(tensors.get_slice(name).get_shape())


def dtype_of(file: Path, name: str) -> str:
    """The dtype of the tensor ``name`` in ``file`` as safetensors spells it, such as ``F32``."""
    with opened(file) as tensors:
        return str(tensors.get_slice(name).get_dtype())


def read_ranges(file: Path, name: str, starts: Sequence[int], stops: Sequence[int]) -> Tensor:
    """The slices ``start:stop`` of dim 0 of the tensor ``name``, one after another, as one tensor of its own."""
    with opened(file) as tensors:
        column = tensors.get_slice(name)
        slices = [column[start:stop] for start, stop in _joined(starts, stops)]
        # A copy, because a slice keeps the whole file mapped.
        return torch.cat(slices) if slices else column[0:0].clone()


def pieces_of(file: Path, name: str) -> Iterator[Tensor]:
    """The tensor ``name`` in order, at most ``PIECE`` values a piece, or one entry of dim 0 where that has more."""
    shape = shape_of(file, name)
    if not shape:
        with opened(file) as tensors:
            yield tensors.get_tensor(name).clone().reshape(1)
        return
    step = max(1, PIECE // max(1, math.prod(shape[1:])))
    for start in range(0, max(shape[0], 1), step):
        yield read_ranges(file, name, [start], [min(start + step, shape[0])])


def row_pieces(lengths: Tensor, width: int = 1) -> tuple[Tensor, ...]:
    """Row numbers ``0..B-1`` in pieces whose rows, of ``lengths [B]``, have about ``PIECE`` values together.

    width: values a token. A piece is never larger than ``PIECE`` and its longest row.
    """
    starts = (lengths.cumsum(0) - lengths) * width
    _, counts = torch.unique_consecutive(starts // PIECE, return_counts=True)
    return torch.arange(len(lengths)).split(counts.tolist())


def _joined(starts: Sequence[int], stops: Sequence[int]) -> list[tuple[int, int]]:
    """The same ranges, neighbours as one."""
    joined: list[tuple[int, int]] = []
    for start, stop in zip(starts, stops, strict=True):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        elif stop > start:
            joined.append((start, stop))
    return joined
