"""A ``TensorDict`` of ``left_right_2_no_padding`` as a container of ``runtime``: what verl 0.9 gives its workers.

Columns of whole sequences are jagged ``[B, j]``, those of responses padded ``[B, R]`` beside ``attention_mask
[B, P+R]``. Answers are as verl's engine gives them: a value for every token, jagged like ``input_ids``, in which the
value of a response token stands where it is predicted, one token before it (``no_padding_2_padding`` reads it there).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from compat import jagged
from compat.columns import columns_of, concat_rows, index_rows
from compat.errors import MissingColumnError
from compat.padding import pack_left_padded, pack_right_padded
from compat.tensordicts import get_tensordict
from runtime import containers
from runtime.fields import LEVELS, Level
from runtime.identity import TrajectoryKey
from runtime.trajectories import TrajectoryBatch
from shared_algos.segments import Segments

_NAMES = {"old_log_probs": "log_probs", "ref_log_prob": "log_probs"}
"""verl's names of what an engine answers."""


@containers.select_rows.register
def _select_rows(data: TensorDict, rows: Tensor) -> TensorDict:
    return index_rows(data, rows)


@containers.shard.register
def _shard(data: TensorDict, count: int) -> list[TensorDict]:
    # Copies: a view would be sent with the storage of the whole batch.
    return [index_rows(data, rows) for rows in torch.arange(len(data)).chunk(count)]


@containers.concat_with.register
def _concat(first: TensorDict, parts: Sequence[TensorDict]) -> TensorDict:  # noqa: ARG001
    return concat_rows(parts)


@containers.read_batch.register
def _read_batch(data: TensorDict, fields: Sequence[str]) -> TrajectoryBatch:
    there = dict(columns_of(data))
    needed = ("prompts", "responses", "attention_mask", *fields)
    if missing := [name for name in needed if name not in there]:
        raise MissingColumnError(f"the TensorDict has no {missing}; it has {sorted(there)}")
    mask = there["attention_mask"]
    width = there["prompts"].shape[1]
    prompts = Segments.from_lengths(mask[:, :width].sum(1))
    responses = Segments.from_lengths(mask[:, width:].sum(1))
    pack: dict[Level, Callable[[Tensor], Tensor]] = {
        Level.PROMPT: lambda column: pack_left_padded(column, prompts.lengths),
        Level.RESPONSE: lambda column: pack_right_padded(column, responses.lengths),
        Level.SEQUENCE: lambda column: jagged.unjag(column)[0],
        Level.ROW: lambda column: column,
    }
    columns = {name: pack[LEVELS[name]](there[name]) for name in fields}
    return TrajectoryBatch(_keys(there, len(data)), prompts, responses, columns)


@containers.answer.register
def _answer(
    data: TensorDict,  # noqa: ARG001
    batch: TrajectoryBatch,
    columns: Mapping[str, Tensor],
    objects: Mapping[str, np.ndarray] | None = None,  # noqa: ARG001
) -> TensorDict:
    sequences = batch.sequences
    first = sequences.offsets[:-1] + batch.prompts.lengths - 1
    places = batch.responses.spread(first) + batch.responses.positions
    answers = {}
    for name, column in columns.items():
        values = column.new_zeros(sequences.num_tokens)
        values[places] = column
        answers[_NAMES.get(name, name)] = jagged.jagged(values, sequences)
    return get_tensordict(answers, {"metrics": {"mfu": 0.0}})


def _keys(columns: Mapping[str, object], rows: int) -> tuple[TrajectoryKey, ...]:
    """By ``uid``, where there is one, and row."""
    uids = columns.get("uid")
    names = [str(uid) for uid in uids.tolist()] if uids is not None else ["row"] * rows  # type: ignore[attr-defined]
    return tuple(TrajectoryKey(name, row, 0) for row, name in enumerate(names))
