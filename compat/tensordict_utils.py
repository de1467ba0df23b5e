"""``verl.utils.tensordict_utils``: reading, choosing and joining the columns of a ``TensorDict``.

A column is a tensor, dense or jagged; a ``NonTensorStack``, one Python object a row; or ``NonTensorData``, a value that
all rows share. Jagged columns stay jagged through everything here, with the ragged dimension that they have.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from compat import jagged
from compat.batch_data import chunk_tensordict
from compat.columns import columns_of, concat_rows, index_rows
from compat.equality import deep_equal, first_differing_row
from compat.errors import DataProtoError, LayoutError, MissingColumnError, UnequalSplitError
from compat.row_choice import Indices, row_indices
from compat.tensordicts import get_tensordict, list_of_dict_to_tensordict, object_column
from compat.union import union_tensor_dict
from shared_algos.segments import Segments

__all__ = [
    "assert_tensordict_eq",
    "assign_non_tensor",
    "assign_non_tensor_data",
    "assign_non_tensor_stack",
    "chunk_tensordict",
    "concat_nested_tensors",
    "concat_tensordict",
    "concat_tensordict_with_none_bsz",
    "contiguous",
    "get",
    "get_keys",
    "get_non_tensor_data",
    "get_tensordict",
    "index_select_tensor_dict",
    "list_of_dict_to_tensordict",
    "make_iterator",
    "maybe_fix_3d_position_ids",
    "nested_tensor_from_tensor_list",
    "pad_to_divisor",
    "pop",
    "pop_keys",
    "union_tensor_dict",
    "unpad",
    "unwrap_non_tensor_data",
]

logger = logging.getLogger(__name__)


# --- values and objects -----------------------------------------------------------------------------------------------


def assign_non_tensor_data(tensor_dict: TensorDict, key: str, val: Any) -> None:
    """Set a value that all rows share."""
    _require_tensordict(tensor_dict)
    tensor_dict[key] = NonTensorData(val)


def assign_non_tensor_stack(tensor_dict: TensorDict, key: str, val: Sequence[Any]) -> None:
    """Set a column of B Python objects, one a row; they may be lists and dicts."""
    _require_tensordict(tensor_dict)
    tensor_dict[key] = object_column(val)


def assign_non_tensor(tensor_dict: TensorDict, **kwargs: Any) -> TensorDict:
    """Set keys to what they are given: a list becomes one object a row, anything else a shared value."""
    _require_tensordict(tensor_dict)
    for key, value in kwargs.items():
        if isinstance(value, NonTensorData | NonTensorStack):
            tensor_dict[key] = value
        elif isinstance(value, list):
            assign_non_tensor_stack(tensor_dict, key, value)
        else:
            assign_non_tensor_data(tensor_dict, key, value)
    return tensor_dict


def unwrap_non_tensor_data(data: Any) -> Any:
    """The value in ``NonTensorData``; anything else as it is."""
    return data.data if isinstance(data, NonTensorData) else data


def get_non_tensor_data(data: TensorDict, key: str, default: Any) -> Any:
    """A shared value, or ``default`` where there is none; columns are returned as they are."""
    return unwrap_non_tensor_data(data.get(key, default))


def get(tensordict: TensorDict, key: str, default: Any = None) -> Any:
    """A tensor as it is, objects as a list, a shared value bare; ``default`` where the key is not there."""
    return _plain(tensordict.get(key)) if key in tensordict else default


def pop(tensordict: TensorDict, key: str, default: Any = None) -> Any:
    """Take a key out and return it as ``get`` does."""
    return _plain(tensordict.pop(key)) if key in tensordict else default


def get_keys(tensordict: TensorDict, keys: Iterable[str]) -> TensorDict:
    """A new batch of the named columns and shared values; ``MissingColumnError`` names those that are not there."""
    wanted = list(keys)
    if missing := [key for key in wanted if key not in tensordict]:
        raise MissingColumnError(f"the TensorDict has no {missing}; it has {sorted(map(str, tensordict.keys()))}")
    values = {key: tensordict.get(key) for key in wanted}
    shared = {key: value.data for key, value in values.items() if isinstance(value, NonTensorData)}
    return get_tensordict({key: value for key, value in values.items() if key not in shared}, shared)


def pop_keys(tensordict: TensorDict, keys: Iterable[str]) -> TensorDict:
    """Move the named keys into a new batch; nothing moves when one is missing."""
    wanted = list(keys)
    popped = get_keys(tensordict, wanted)
    for key in wanted:
        tensordict.pop(key)
    return popped


def contiguous(data: TensorDict) -> TensorDict:
    """A new batch whose tensors are contiguous; objects and shared values are the same."""
    columns: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for key, column in columns_of(data):
        if isinstance(column, NonTensorData):
            shared[key] = column.data
        else:
            columns[key] = column.contiguous() if isinstance(column, Tensor) else column
    return get_tensordict(columns, shared)


def _plain(column: Any) -> Any:
    return column.tolist() if isinstance(column, NonTensorStack) else unwrap_non_tensor_data(column)


def _require_tensordict(value: Any) -> None:
    if not isinstance(value, TensorDict):
        raise DataProtoError(f"expected a TensorDict, got a {type(value).__name__}")


# --- jagged tensors ---------------------------------------------------------------------------------------------------


def nested_tensor_from_tensor_list(tensors: Sequence[Tensor], ragged_idx: int | None = None) -> Tensor:
    """A jagged tensor ``[B, ...]`` of B tensors that may differ in one dimension.

    ragged_idx: that dimension of the result, 1 for rows ``[L, ...]`` or 2 for rows ``[k, L]``; the last by default.
    """
    if not tensors:
        raise LayoutError("cannot build a jagged tensor from zero rows; give at least one")
    dim = tensors[0].dim() if ragged_idx is None else ragged_idx
    if not 1 <= dim <= tensors[0].dim():
        raise LayoutError(f"ragged_idx must be in 1..{tensors[0].dim()} for rows {tuple(tensors[0].shape)}, got {dim}")
    lengths = torch.tensor([tensor.shape[dim - 1] for tensor in tensors], device=tensors[0].device)
    return jagged.jagged(torch.cat(list(tensors), dim=dim - 1), Segments.from_lengths(lengths), dim)


def concat_nested_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """Join jagged tensors row after row; all must be jagged in the same dimension."""
    if odd := next((number for number, tensor in enumerate(tensors) if not jagged.is_jagged(tensor)), None):
        raise LayoutError(f"tensor {odd} is not jagged; make all of them jagged, or all dense")
    return jagged.concat_rows(tensors)


def maybe_fix_3d_position_ids(data: TensorDict) -> None:
    """Say, in place, that jagged position ids ``[B, k, j]`` are ragged in their last dimension.

    A ``TensorDict`` that was consolidated and pickled elsewhere may have lost that.
    """
    if "position_ids" in data and jagged.is_jagged(data["position_ids"]) and data["position_ids"].dim() == 3:
        data["position_ids"]._ragged_idx = 2  # type: ignore[attr-defined]  # torch has no public name for it


# --- rows -------------------------------------------------------------------------------------------------------------


def concat_tensordict(data: Sequence[TensorDict]) -> TensorDict:
    """Join batches row after row. Batches of shared values only, which have no rows, give the first.

    Raises ``MissingColumnError`` naming a column that not all parts have, ``DataProtoError`` naming one whose shapes
    differ. Shared values must be the same in all parts; ``DataProtoError`` names the one that is not.
    """
    if not data:
        raise DataProtoError("cannot concatenate zero batches; give at least one")
    return concat_rows(data) if len(data[0].batch_size) else concat_tensordict_with_none_bsz(data)


def concat_tensordict_with_none_bsz(data: Sequence[TensorDict]) -> TensorDict:
    """The first of batches that have no rows, only shared values."""
    if any(len(part.batch_size) for part in data):
        raise DataProtoError("some parts have rows and others do not; concatenate those of one kind")
    return data[0]


def index_select_tensor_dict(batch: TensorDict | None, indices: Indices) -> TensorDict | None:
    """The rows ``indices`` (integers ``[B']``) of every column, in that order; shared values stay.

    ``None`` gives ``None``.
    """
    return None if batch is None else index_rows(batch, row_indices(indices, len(batch)))


def make_iterator(
    tensordict: TensorDict,
    mini_batch_size: int,
    epochs: int,
    seed: int | None = None,
    dataloader_kwargs: dict[str, Any] | None = None,
) -> Iterator[TensorDict]:
    """Yield mini-batches for ``epochs`` rounds, shuffled as ``dataloader_kwargs`` say, in the order that verl gives.

    Raises ``UnequalSplitError`` naming both sizes when the rows do not divide.
    """
    if mini_batch_size < 1 or len(tensordict) % mini_batch_size:
        raise UnequalSplitError(f"{len(tensordict)} rows do not divide into mini-batches of {mini_batch_size}")
    loader = DataLoader(
        cast("Dataset[int]", range(len(tensordict))),
        batch_size=mini_batch_size,
        collate_fn=lambda rows: index_select_tensor_dict(tensordict, rows),
        generator=None if seed is None else torch.Generator().manual_seed(seed),
        **(dataloader_kwargs or {}),
    )
    return (mini_batch for _ in range(epochs) for mini_batch in loader)


def pad_to_divisor(data: TensorDict, size_divisor: int) -> tuple[TensorDict, int]:
    """Append the first rows again, cycling, until the row count divides; returns the batch and the rows added."""
    _require_tensordict(data)
    if size_divisor < 1:
        raise UnequalSplitError(f"cannot pad {len(data)} rows to a multiple of {size_divisor}; ask for at least 1")
    pad_size = -len(data) % size_divisor
    if len(data) == 0:
        logger.warning("an empty TensorDict cannot be padded to a multiple of %d", size_divisor)
    if pad_size == 0:
        return data, 0
    return index_rows(data, torch.arange(len(data) + pad_size) % len(data)), pad_size


def unpad(data: TensorDict, pad_size: int) -> TensorDict:
    """Drop the last ``pad_size`` rows."""
    if not 0 <= pad_size <= len(data):
        raise DataProtoError(f"cannot drop {pad_size} padding rows from a batch of {len(data)}")
    return index_rows(data, torch.arange(len(data) - pad_size)) if pad_size else data


def assert_tensordict_eq(tensordict1: TensorDict, tensordict2: TensorDict) -> None:
    """Raise ``DataProtoError`` naming what differs: the keys, the kind of a column, or a column and its first row."""
    left, right = dict(columns_of(tensordict1)), dict(columns_of(tensordict2))
    if odd := left.keys() ^ right.keys():
        raise DataProtoError(f"the keys differ in {sorted(odd)}")
    for key, column in left.items():
        other = right[key]
        if type(column) is not type(other):
            raise DataProtoError(f"{key!r} is a {type(column).__name__} here and a {type(other).__name__} there")
        if isinstance(column, Tensor):
            if (row := first_differing_row(column, other)) is not None:
                raise DataProtoError(f"column {key!r} first differs in row {row}")
        elif not deep_equal(_plain(column), _plain(other)):
            raise DataProtoError(f"{key!r} differs: {_plain(column)!r} here, {_plain(other)!r} there")
