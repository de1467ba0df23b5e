"""``DataProto`` as a container of ``runtime``: padded columns to the packed layout, and new columns back.

A legacy batch has prompts left-padded and responses right-padded, each to a width of its own; in
``attention_mask [B, P+R]`` the tokens that exist are 1. The functions are registered for what ``DataProto`` inherits
from, so that they are there wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from compat.errors import LayoutError, MissingColumnError
from compat.padding import pack_left_padded, pack_right_padded, pack_sequences, pad_right
from compat.protocol_columns import ColumnOperations, tensor_batch
from runtime import containers
from runtime.fields import LEVELS, Level
from runtime.identity import TrajectoryKey
from runtime.trajectories import TrajectoryBatch
from shared_algos.segments import Segments


def keys_of(data: ColumnOperations) -> list[TrajectoryKey]:
    """The trajectory key of each row; rows without ``session_id`` are numbered within their uid in row order."""
    # Old recipes give columns alone to a worker: rows are then of one nameless prompt.
    uids = data.non_tensor_batch.get("uid", np.full(len(data), "row", dtype=object))
    sessions = data.non_tensor_batch.get("session_id")
    if sessions is None:
        seen: dict[str, int] = {}
        numbers = []
        for uid in uids:
            numbers.append(seen.get(uid, 0))
            seen[uid] = numbers[-1] + 1
        sessions = np.array(numbers, dtype=object)
    return [TrajectoryKey(str(uid), int(session), 0) for uid, session in zip(uids, sessions, strict=True)]


def _tensors(data: ColumnOperations) -> TensorDict:
    if data.batch is None:
        raise MissingColumnError("the DataProto has no tensor columns; trajectories have prompts and responses")
    return data.batch


@containers.select_rows.register
def _select_rows(data: ColumnOperations, rows: Tensor) -> ColumnOperations:
    return data.select_idxs(rows)


def column_names(data: ColumnOperations) -> set[str]:
    """The names of all tensor and object columns."""
    return {*_tensors(data).keys(), *data.non_tensor_batch}


@containers.read_batch.register
def read_batch(data: ColumnOperations, fields: Sequence[str]) -> TrajectoryBatch:
    """Pack the columns ``fields`` of a padded batch; ``MissingColumnError`` names a column that is not there."""
    tensors, columns_there = _tensors(data), column_names(data)
    if missing := [name for name in fields if name not in columns_there]:
        raise MissingColumnError(f"the DataProto has no {missing}; it has {sorted(columns_there)}")
    mask = tensors["attention_mask"]
    # Not of the prompts: old loops give a worker the columns that it needs, and those are not among them.
    width = mask.shape[1] - tensors["responses"].shape[1]
    prompts = Segments.from_lengths(mask[:, :width].sum(1))
    responses = Segments.from_lengths(mask[:, width:].sum(1))
    _check_padding(mask, width, prompts, responses)
    pack: dict[Level, Callable[[Tensor], Tensor]] = {
        Level.PROMPT: lambda padded: pack_left_padded(padded, prompts.lengths),
        Level.RESPONSE: lambda padded: pack_right_padded(padded, responses.lengths),
        Level.SEQUENCE: lambda padded: pack_sequences(padded, mask),
        Level.ROW: lambda column: column,
    }
    return TrajectoryBatch(
        keys=tuple(keys_of(data)),
        prompts=prompts,
        responses=responses,
        columns={name: pack[LEVELS[name]](tensors[name]) for name in fields if name in LEVELS},
        objects={name: data.non_tensor_batch[name] for name in fields if name not in LEVELS},
    )


def _check_padding(mask: Tensor, width: int, prompts: Segments, responses: Segments) -> None:
    """``LayoutError`` naming the first row with padding between its tokens: its columns would not fit each other."""
    places = torch.arange(mask.shape[1], device=mask.device)
    first, behind = width - prompts.lengths[:, None], width + responses.lengths[:, None]
    bad = (mask.bool() != ((places >= first) & (places < behind))).any(1)
    if bool(bad.any()):
        raise LayoutError(
            f"row {int(bad.nonzero()[0])} has padding between its tokens: prompts are padded at the left and responses "
            "at the right; tokens that the model did not generate are 0 in response_mask, and 1 in attention_mask"
        )


@containers.answer.register
def answer(
    data: ColumnOperations,
    batch: TrajectoryBatch,
    columns: Mapping[str, Tensor],
    objects: Mapping[str, np.ndarray] | None = None,
) -> ColumnOperations:
    """Pad response-level ``columns`` to the width of the batch's responses: only the new columns are sent back."""
    width = _tensors(data)["responses"].shape[1]
    padded = {name: pad_right(column, batch.responses, width) for name, column in columns.items()}
    return data.with_columns(tensor_batch(padded, 1) if padded else None, dict(objects or {}), {})


__all__ = ["answer", "column_names", "keys_of", "read_batch"]
