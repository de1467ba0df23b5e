"""Functions on a whole ``DataProto``: padding to a divisor, folding, rows of dicts to columns."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from tensordict import TensorDict

from compat.errors import DataProtoError, MissingColumnError, UnequalSplitError
from compat.protocol_columns import ColumnOperations

Batch = TypeVar("Batch", bound=ColumnOperations)

logger = logging.getLogger(__name__)


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
    return data.slice(0, len(data) - pad_size) if pad_size else data


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
    return data.with_columns(batch, arrays, data.meta_info)


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
