"""Which rows an operation of ``DataProto`` means: indices checked, parts measured, auto-padding on or off."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from compat.errors import ColumnTypeError, DataProtoError, UnequalSplitError

Indices = Sequence[int] | Sequence[bool] | np.ndarray | Tensor


class _AutoPadding(type):
    """Makes ``DataProtoConfig.auto_padding`` a checked switch on the class itself."""

    auto_padding_key = "_verl_auto_padding"
    _enabled = False

    @property
    def auto_padding(cls) -> bool:
        return cls._enabled or os.getenv("VERL_AUTO_PADDING", "false").lower() in ("true", "1")

    @auto_padding.setter
    def auto_padding(cls, enabled: bool) -> None:
        if not isinstance(enabled, bool):
            raise DataProtoError(f"DataProtoConfig.auto_padding must be True or False, got {enabled!r}")
        cls._enabled = enabled


class DataProtoConfig(metaclass=_AutoPadding):
    """Process-wide settings of ``DataProto``.

    ``DataProtoConfig.auto_padding = True``, or ``VERL_AUTO_PADDING=1`` in the environment, lets any batch be chunked
    into parts of unequal size. For one batch, ``DataProto.from_dict(..., auto_padding=True)`` sets ``auto_padding_key``
    in its meta_info.
    """


def row_indices(indices: Indices, num_rows: int) -> Tensor:
    """int64 ``[B']`` on the CPU from integers (negative ones count from the end) or from a mask ``[B]``.

    Raises ``IndexError`` naming index and row count, ``DataProtoError`` for a mask of another length,
    ``ColumnTypeError`` for other types.
    """
    # torch takes no array with a negative stride, which np.argsort(...)[::-1] has.
    rows = torch.as_tensor(np.ascontiguousarray(indices) if isinstance(indices, np.ndarray) else indices).detach().cpu()
    if rows.dim() != 1 or (rows.numel() and (rows.is_floating_point() or rows.is_complex())):
        raise ColumnTypeError(f"row indices must be integers or booleans [B], got {rows.dtype} {tuple(rows.shape)}")
    if rows.dtype == torch.bool:
        if rows.numel() != num_rows:
            raise DataProtoError(f"a row mask must have one entry a row: got {rows.numel()} for {num_rows} rows")
        return rows.nonzero().flatten()
    rows = rows.long()
    if bool((outside := (rows >= num_rows) | (rows < -num_rows)).any()):
        raise IndexError(f"row index {int(rows[outside][0])} is out of range for {num_rows} rows")
    return torch.where(rows < 0, rows + num_rows, rows)


def chunk_sizes(num_rows: int, chunks: int, allow_unequal: bool) -> list[int]:
    """Rows of each of ``chunks`` parts, in order.

    Unequal parts, where allowed, are cut as ``torch.chunk`` cuts (all but the last of one size) when that gives
    ``chunks`` parts, else as ``np.array_split`` does, so that no part is empty unless there are fewer rows than parts.
    Raises ``UnequalSplitError``.
    """
    if chunks < 1:
        raise UnequalSplitError(f"cannot split {num_rows} rows into {chunks} parts; ask for at least 1")
    if num_rows % chunks and not allow_unequal:
        raise UnequalSplitError(
            f"cannot split {num_rows} rows into {chunks} equal parts: the remainder is {num_rows % chunks}; pad with "
            "pad_dataproto_to_divisor, or build the batch with auto_padding=True"
        )
    size = -(-num_rows // chunks)
    last = num_rows - size * (chunks - 1)
    if last > 0 or num_rows == 0:
        return [size] * (chunks - 1) + [last]
    small, larger = divmod(num_rows, chunks)
    return [small + 1] * larger + [small] * (chunks - larger)
