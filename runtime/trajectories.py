"""A batch of trajectories on the packed layout: what engines, advantages, metrics and captures read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from runtime.fields import ALIASES, LEVELS, Level
from runtime.identity import TrajectoryKey
from shared_algos.segments import Segments


@dataclass(frozen=True, eq=False)
class TrajectoryBatch:
    """B trajectories, each a prompt followed by a response.

    keys: one a row. prompts, responses: where rows begin and end among prompt and response tokens, ``[B+1]`` each.
    columns: packed tensors, each over the tokens that ``fields.LEVELS`` gives for its name.
    objects: dataset objects, ``[B]`` object arrays.
    """

    keys: tuple[TrajectoryKey, ...]
    prompts: Segments
    responses: Segments
    columns: Mapping[str, Tensor]
    objects: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = len(self.keys)
        if self.prompts.num_rows != rows or self.responses.num_rows != rows:
            raise ValueError(
                f"{rows} keys, but {self.prompts.num_rows} prompts and {self.responses.num_rows} responses"
            )
        for name, column in self.columns.items():
            expected = self._size_of(name)
            if column.shape[0] != expected:
                raise ValueError(f"column {name!r} has {column.shape[0]} values, expected {expected}")
        for name, values in self.objects.items():
            if len(values) != rows:
                raise ValueError(f"objects {name!r} have {len(values)} values, expected {rows}")

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, name: str) -> Tensor:
        """The packed column ``name``, or the one it is an alias of; ``KeyError`` lists the columns there are."""
        try:
            return self.columns[ALIASES.get(name, name)]
        except KeyError:
            raise KeyError(f"no column {name!r}; this batch has {sorted(self.columns)}") from None

    def __contains__(self, name: str) -> bool:
        return ALIASES.get(name, name) in self.columns

    @cached_property
    def sequences(self) -> Segments:
        """Rows among the tokens of prompt + response, ``[B+1]``."""
        return Segments.from_lengths(self.prompts.lengths + self.responses.lengths)

    @cached_property
    def predictors(self) -> Tensor:
        """The packed sequence index whose logits predict each response token (the one before it), int64 ``[T]``."""
        starts = self.sequences.offsets[:-1] + self.prompts.lengths
        return starts[self.responses.rows] + self.responses.positions - 1

    @cached_property
    def groups(self) -> Tensor:
        """A number for each row that rows of one uid share, int64 ``[B]``, the same in any order of the rows."""
        numbers = {uid: number for number, uid in enumerate(sorted({key.uid for key in self.keys}))}
        return torch.tensor([numbers[key.uid] for key in self.keys], dtype=torch.int64)

    def segments_of(self, level: Level) -> Segments:
        """The segments of token columns of ``level``."""
        return {Level.PROMPT: self.prompts, Level.RESPONSE: self.responses, Level.SEQUENCE: self.sequences}[level]

    def select(self, rows: Tensor | Sequence[int]) -> TrajectoryBatch:
        """The rows ``rows`` in the order given; all columns, keys and objects move together."""
        index = torch.as_tensor(rows, dtype=torch.int64)
        picks: dict[Level, Tensor] = {Level.ROW: index}
        picks |= {level: self.segments_of(level).token_indices(index) for level in Level if level is not Level.ROW}
        return TrajectoryBatch(
            keys=tuple(self.keys[row] for row in index.tolist()),
            prompts=Segments.from_lengths(self.prompts.lengths[index]),
            responses=Segments.from_lengths(self.responses.lengths[index]),
            columns={name: column[picks[level_of(name)]] for name, column in self.columns.items()},
            objects={name: values[index.numpy()] for name, values in self.objects.items()},
        )

    def with_columns(self, columns: Mapping[str, Tensor]) -> TrajectoryBatch:
        """A batch with ``columns`` added or replaced."""
        return replace(self, columns={**self.columns, **columns})

    def to(self, device: torch.device | str) -> TrajectoryBatch:
        """Move every tensor to ``device``."""
        return replace(
            self,
            prompts=Segments(self.prompts.offsets.to(device)),
            responses=Segments(self.responses.offsets.to(device)),
            columns={name: column.to(device) for name, column in self.columns.items()},
        )

    def _size_of(self, name: str) -> int:
        level = level_of(name)
        return len(self.keys) if level is Level.ROW else self.segments_of(level).num_tokens


def level_of(name: str) -> Level:
    """The level of a tensor field; ``KeyError`` for a name that ``fields.LEVELS`` lacks: it is never guessed."""
    try:
        return LEVELS[name]
    except KeyError:
        raise KeyError(f"{name!r} is not a tensor field; declare its level in runtime.fields.LEVELS") from None


def last_outputs(batch: TrajectoryBatch) -> Tensor:
    """The row of the last output of each session, in row order, int64 ``[S]``."""
    last: dict[tuple[str, int], int] = {}
    for row, key in enumerate(batch.keys):
        session = (key.uid, key.session_id)
        if session not in last or key.index > batch.keys[last[session]].index:
            last[session] = row
    return torch.tensor(sorted(last.values()), dtype=torch.int64)


def outcome_scores(scores: Sequence[float], responses: Segments) -> Tensor:
    """Token-level scores ``[T]`` float32 that hold each row's outcome on its last response token."""
    column = torch.zeros(responses.num_tokens, dtype=torch.float32)
    column[responses.offsets[1:] - 1] = torch.tensor(scores, dtype=torch.float32)
    return column
