"""What dispatch does with a batch of any kind: ``DataProto``, ``TensorDict``, ``DataProtoFuture``, list of B items."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import ray
import torch
from tensordict import TensorDict
from torch import Tensor

from compat import columns
from compat.batch_data import BatchData
from compat.futures import DataProtoFuture, concat_parts
from compat.protocol import DataProto, DataProtoConfig
from compat.row_choice import chunk_sizes
from compat.single_controller.errors import DispatchError
from compat.tensordict_utils import concat_tensordict


def split(batch: Any, count: int) -> list[Any]:
    """``count`` equal parts in row order; ``UnequalSplitError`` names both numbers, ``DispatchError`` the type."""
    if isinstance(batch, list):
        bounds = accumulate(chunk_sizes(len(batch), count, allow_unequal=False), initial=0)
        return [batch[start:stop] for start, stop in pairwise(bounds)]
    if not BatchData(batch).is_chunkable():
        raise DispatchError(
            f"a {type(batch).__name__} cannot be cut into one part a rank; pass a DataProto, a TensorDict or a list, "
            "or register the method with Dispatch.ONE_TO_ALL"
        )
    parts = BatchData(batch).chunk(count)
    # A view would be sent with the storage of the whole batch.
    return [part.clone() for part in parts] if isinstance(batch, TensorDict) else list(parts)


def join(parts: Sequence[Any]) -> Any:
    """Put one answer a rank together, in kind; references to answers become one ``DataProtoFuture``."""
    kinds = {type(part).__name__ for part in parts}
    if len(kinds) != 1 or not (isinstance(parts[0], list) or BatchData(parts).is_concatable()):
        raise DispatchError(
            f"the ranks answered with {', '.join(sorted(kinds)) or 'nothing'}; to be joined, every rank must answer "
            "with a DataProto, or every rank with a TensorDict, or with a list. Dispatch.DP_COMPUTE_METRIC returns the "
            "answers as they are"
        )
    if isinstance(parts[0], ray.ObjectRef):
        return DataProtoFuture(collect_fn=join, futures=list(parts))
    if isinstance(parts[0], list):
        return [row for part in parts for row in part]
    return concat_tensordict(parts) if isinstance(parts[0], TensorDict) else concat_parts(parts)


class Padding(NamedTuple):
    """Rows that were added so that every rank gets as many."""

    size: int
    """How many."""
    rows: int
    """How many there are with them."""


def pads(batch: Any) -> bool:
    """Whether auto-padding is on for this batch."""
    if isinstance(batch, DataProto):
        return batch.is_padding_enabled()
    return isinstance(batch, TensorDict | list) and DataProtoConfig.auto_padding


def pad(batch: Any, padding: Padding) -> Any:
    """A batch with its last row ``padding.size`` times more; the batch itself stays as it is."""
    if not padding.size:
        return batch
    if isinstance(batch, list):
        return batch + batch[-1:] * padding.size
    return _take(batch, torch.arange(padding.rows).clamp(max=len(batch) - 1))


def unpad(answer: Any, padding: Padding | int, method: str) -> Any:
    """Drop what a method made of the last ``padding.size`` of ``padding.rows`` rows.

    A bare number, as a dispatch function of verl's form gives it, is that many rows of the answer. An answer may have k
    rows for each row it was given (a rollout of k responses), or none at all. Any other number is a ``DispatchError``,
    since it does not say which rows belong to the padding.
    """
    if isinstance(answer, DataProtoFuture):
        drop = partial(unpad, padding=padding, method=method)
        return DataProtoFuture(answer.collect_fn, answer.futures, drop)
    if not isinstance(answer, DataProto | TensorDict | list) or len(answer) == 0:
        return answer
    if isinstance(padding, int):
        padding = Padding(padding, len(answer))
    if len(answer) % padding.rows:
        raise DispatchError(
            f"{method} answered {len(answer)} rows to {padding.rows}, {padding.size} of which are padding; with "
            "auto-padding it must answer the same number of rows for every row"
        )
    kept = len(answer) - padding.size * (len(answer) // padding.rows)
    return answer[:kept] if isinstance(answer, list) else _take(answer, torch.arange(kept))


def _take(batch: DataProto | TensorDict, rows: Tensor) -> DataProto | TensorDict:
    return columns.index_rows(batch, rows) if isinstance(batch, TensorDict) else batch.select_idxs(rows)
