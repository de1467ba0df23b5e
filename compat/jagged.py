"""Jagged tensors, ``[B, j]``: rows of different lengths behind one ``torch.nested`` face.

torch leaves four traps, and every jagged tensor of this project is built and taken apart here to avoid them. Without
``max_seqlen``, ``to_padded_tensor`` pads to the total token count. There is no ``index_select`` and no ``cat`` on dim
0. Equal but separate offsets refuse arithmetic. And ``as_nested_tensor`` guesses the ragged dimension from the lengths,
so it guesses wrong where all rows are equally long; here the ragged dimension is always said, never guessed.

Two layouts: ``values [T, ...]`` with ragged dimension 1, read as ``[B, j, ...]``, and ``values [k, T]`` with ragged
dimension 2, read as ``[B, k, j]`` (the position ids of multimodal models).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeGuard

import torch
from torch import Tensor

from compat.errors import LayoutError
from shared_algos.segments import Segments


def is_jagged(value: object) -> TypeGuard[Tensor]:
    """Whether ``value`` is a nested tensor of layout ``torch.jagged``."""
    return isinstance(value, Tensor) and value.is_nested and value.layout == torch.jagged


def jagged(values: Tensor, segments: Segments, ragged_dim: int = 1) -> Tensor:
    """View packed values as a jagged tensor that knows its longest row and shares ``segments.offsets``.

    values: ``[T, ...]``, or ``[k, T, ...]`` with ``ragged_dim=2``. Returns ``[B, j, ...]`` or ``[B, k, j, ...]``; no
    copy. Raises ``LayoutError`` when the ragged dimension of ``values`` does not have T entries.
    """
    if not 1 <= ragged_dim <= values.dim():
        raise LayoutError(f"ragged_dim must be in 1..{values.dim()} for values {tuple(values.shape)}, got {ragged_dim}")
    if values.shape[ragged_dim - 1] != segments.num_tokens:
        raise LayoutError(
            f"values {tuple(values.shape)} have {values.shape[ragged_dim - 1]} entries on dim {ragged_dim - 1} "
            f"where their segments have {segments.num_tokens} tokens"
        )
    return torch.nested.nested_tensor_from_jagged(
        values,
        segments.offsets,
        jagged_dim=ragged_dim,
        min_seqlen=int(segments.lengths.min()) if segments.num_rows else 0,
        max_seqlen=int(segments.lengths.max()) if segments.num_rows else 0,
    )


def ragged_dim(nested: Tensor) -> int:
    """The dimension of ``nested`` whose length differs by row: 1 for ``[B, j, ...]``, 2 for ``[B, k, j]``."""
    return nested._ragged_idx  # type: ignore[attr-defined]  # torch has no public name for it


def unjag(nested: Tensor) -> tuple[Tensor, Segments]:
    """Take a jagged tensor apart without a copy: its packed ``values`` and the ``Segments`` of its rows.

    Holes (``lengths`` beside ``offsets``, as ``narrow`` leaves them) are closed first, which copies. Raises
    ``LayoutError`` for a tensor that is not jagged.
    """
    if not is_jagged(nested):
        layout = f"shape {tuple(nested.shape)}, layout {nested.layout}"
        raise LayoutError(
            f"expected a nested tensor of layout torch.jagged, got {layout}; build it with compat.jagged.jagged"
        )
    jagged_tensor: Any = nested  # torch does not type the methods of its jagged subclass
    compact = jagged_tensor if jagged_tensor.lengths() is None else jagged_tensor.contiguous()
    return compact.values(), Segments(compact.offsets().long())


def row_lengths(nested: Tensor) -> Tensor:
    """Lengths of the rows of a jagged tensor, int64 ``[B]``."""
    return unjag(nested)[1].lengths


def share_offsets(columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rebuild jagged columns so that those of equal row lengths share one offsets tensor and can be added or compared.

    Values are not copied, and the order of the columns is kept.
    """
    known: list[Segments] = []
    shared: dict[str, Tensor] = {}
    for key, nested in columns.items():
        values, segments = unjag(nested)
        match = next((s for s in known if _same_offsets(s.offsets, segments.offsets)), None)
        if match is None:
            known.append(match := segments)
        shared[key] = jagged(values, match, ragged_dim(nested))
    return shared


def _same_offsets(left: Tensor, right: Tensor) -> bool:
    return left is right or (left.device == right.device and torch.equal(left, right))


def select_rows(nested: Tensor, rows: Tensor) -> Tensor:
    """The rows ``rows [B']`` (int64, repeats and negative indices allowed) of a jagged tensor, still jagged."""
    values, segments = unjag(nested)
    rows = rows.to(segments.offsets.device, torch.int64)
    rows = torch.where(rows < 0, rows + segments.num_rows, rows)
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < segments.num_rows:
        raise IndexError(f"row indices {rows.tolist()} are out of range for {segments.num_rows} rows")
    dim = ragged_dim(nested)
    chosen = values.index_select(dim - 1, segments.token_indices(rows))
    return jagged(chosen, Segments.from_lengths(segments.lengths[rows]), dim)


def slice_rows(nested: Tensor, start: int, stop: int) -> Tensor:
    """Rows ``start`` to ``stop`` (0 <= start <= stop <= B) of a jagged tensor as a view on its values, still jagged."""
    values, segments = unjag(nested)
    if not 0 <= start <= stop <= segments.num_rows:
        raise IndexError(f"rows {start}:{stop} are out of range for {segments.num_rows} rows")
    first, last = segments.offsets[start].item(), segments.offsets[stop].item()
    dim = ragged_dim(nested)
    inner = values.narrow(dim - 1, int(first), int(last - first))
    return jagged(inner, Segments(segments.offsets[start : stop + 1] - first), dim)


def split_rows(nested: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Cut a jagged tensor on dim 0 into parts of ``sizes`` rows each, all jagged, views on the same values."""
    num_rows = nested.shape[0]
    if sum(sizes) != num_rows:
        raise LayoutError(f"parts of {list(sizes)} rows make {sum(sizes)}, but the jagged tensor has {num_rows} rows")
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    return [slice_rows(nested, start, stop) for start, stop in pairwise(ends)]


def concat_rows(parts: Sequence[Tensor]) -> Tensor:
    """Join jagged tensors on dim 0. All must have the same ragged dimension and the same other dimensions."""
    if not parts:
        raise LayoutError("cannot concatenate zero jagged tensors; give at least one")
    dims = sorted({ragged_dim(part) for part in parts if is_jagged(part)})
    if len(dims) > 1:
        raise LayoutError(f"cannot concatenate jagged tensors with ragged dimensions {dims}; they must be the same")
    taken = [unjag(part) for part in parts]
    lengths = torch.cat([segments.lengths for _, segments in taken])
    values = torch.cat([values for values, _ in taken], dim=dims[0] - 1)
    return jagged(values, Segments.from_lengths(lengths), dims[0])
