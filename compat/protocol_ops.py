"""Helpers around ``DataProto`` that need only its methods: row indices, splitting, padding, folding, auto-padding."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from compat.errors import ColumnTypeError, DataProtoError, MissingColumnError, UnequalSplitError

if TYPE_CHECKING:
    from compat.protocol import DataProto

    Batch = TypeVar("Batch", bound=DataProto)
else:
    Batch = TypeVar("Batch")

Indices = Sequence[int] | Sequence[bool] | np.ndarray | Tensor

logger = logging.getLogger(__name__)


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
    rows = torch.as_tensor(indices).detach().cpu()
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


def pad_dataproto_to_divisor(data: Batch, size_divisor: int) -> tuple[Batch, int]:
    """Append the first rows again, cycling, until the row count divides by ``size_divisor``.

    Returns the padded batch and the number of rows added; nothing added returns ``data`` itself. 3 rows padded to a
    divisor of 8 are rows 0, 1, 2, 0, 1, 2, 0, 1. An empty batch has nothing to repeat and stays empty.
    """
    if size_divisor < 1:
        raise UnequalSplitError(f"cannot pad {len(data)} rows to a multiple of {size_divisor}; ask for at least 1")
    if len(data) == 0:
        logger.warning("an empty DataProto cannot be padded to a multiple of %d: it has no row to repeat", size_divisor)
    pad_size = -len(data) % size_divisor
    if pad_size == 0:
        return data, 0
    return data.select_idxs(torch.arange(len(data) + pad_size) % len(data)), pad_size


def unpad_dataproto(data: Batch, pad_size: int) -> Batch:
    """Drop the last ``pad_size`` rows: what ``pad_dataproto_to_divisor`` added."""
    if not 0 <= pad_size <= len(data):
        raise DataProtoError(f"cannot drop {pad_size} padding rows from a batch of {len(data)}")
    return data[: len(data) - pad_size] if pad_size else data


def fold_batch_dim(data: Batch, new_batch_size: int) -> Batch:
    """Group neighbouring rows: every column ``[B, ...]`` becomes ``[new_batch_size, B / new_batch_size, ...]``."""
    if new_batch_size < 1 or len(data) % new_batch_size:
        raise UnequalSplitError(f"cannot fold {len(data)} rows into {new_batch_size} groups of one size")
    group = len(data) // new_batch_size
    return _reshape_columns(data, new_batch_size, lambda shape: (new_batch_size, group, *shape[1:]))


def unfold_batch_dim(data: Batch, batch_dims: int = 2) -> Batch:
    """Flatten the first ``batch_dims`` dimensions of every column into rows; the inverse of ``fold_batch_dim``."""
    columns = [*(data.batch.values() if data.batch is not None else ()), *data.non_tensor_batch.values()]
    if not columns:
        raise DataProtoError("a batch without columns does not say how many rows it unfolds to")
    num_rows = math.prod(columns[0].shape[:batch_dims])
    return _reshape_columns(data, num_rows, lambda shape: (num_rows, *shape[batch_dims:]))


def _reshape_columns(data: Batch, num_rows: int, new_shape: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Batch:
    """Give every column the shape ``new_shape(its shape)``, which begins with ``num_rows``."""
    batch = data.batch
    if batch is not None:
        tensors = {key: column.reshape(new_shape(column.shape)) for key, column in batch.items()}
        batch = TensorDict(tensors, batch_size=[num_rows], device=batch.device)
    arrays = {key: array.reshape(new_shape(array.shape)) for key, array in data.non_tensor_batch.items()}
    return type(data)(batch=batch, non_tensor_batch=arrays, meta_info=data.meta_info)


def list_of_dict_to_dict_of_list(list_of_dict: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Turn rows into columns. Every dict must have the keys of the first; the error names the dict and the keys."""
    if not list_of_dict:
        return {}
    keys = list_of_dict[0].keys()
    for number, values in enumerate(list_of_dict):
        if odd := keys ^ values.keys():
            raise MissingColumnError(
                f"dict {number} and dict 0 differ in the keys {sorted(odd)}; they must have the same keys"
            )
    return {key: [values[key] for values in list_of_dict] for key in keys}
