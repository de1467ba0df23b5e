"""Row operations on a ``TensorDict`` whose columns may be dense, jagged or Python objects.

Every column of a batch moves with its rows. Jagged columns stay jagged, and those of equal row lengths leave each
operation on one offsets tensor, so that they can still be added and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from compat import jagged
from compat.errors import DataProtoError, LayoutError, MissingColumnError


def columns_of(batch: TensorDict) -> Iterator[tuple[str, Any]]:
    """Each key with its column as stored: tensor, nested ``TensorDict``, ``NonTensorData`` or ``NonTensorStack``."""
    for key in batch.keys():  # noqa: SIM118  iterating a TensorDict gives rows
        yield str(key), batch.get(key)


def from_columns(columns: dict[str, Any], num_rows: int, device: torch.device | None = None) -> TensorDict:
    """Assemble a batch of ``num_rows`` rows, jagged columns of equal lengths on shared offsets."""
    ragged = {key: column for key, column in columns.items() if jagged.is_jagged(column)}
    return TensorDict({**columns, **jagged.share_offsets(ragged)}, batch_size=[num_rows], device=device)


def map_columns(batch: TensorDict, num_rows: int, operation: Callable[[str, Any], Any]) -> TensorDict:
    """Apply ``operation(key, column)`` to every column; the result has ``num_rows`` rows and the same device."""
    return from_columns({key: operation(key, column) for key, column in columns_of(batch)}, num_rows, batch.device)


def index_rows(batch: TensorDict, rows: Tensor) -> TensorDict:
    """The rows ``rows [B']`` (int64) of every column, in that order."""
    return map_columns(batch, rows.numel(), lambda _, column: _index_column(column, rows))


def _index_column(column: Any, rows: Tensor) -> Any:
    if jagged.is_jagged(column):
        return jagged.select_rows(column, rows)
    # index_select copies whole rows: half the time of column[rows]
    return column.index_select(0, rows.to(column.device)) if isinstance(column, Tensor) else column[rows]


def slice_rows(batch: TensorDict, start: int, stop: int) -> TensorDict:
    """Rows ``start`` to ``stop`` of every column, as views."""
    return map_columns(
        batch,
        stop - start,
        lambda _, column: jagged.slice_rows(column, start, stop) if jagged.is_jagged(column) else column[start:stop],
    )


def concat_rows(batches: Sequence[TensorDict]) -> TensorDict:
    """Join batches on dim 0. Errors name the key and the part that lacks it, or whose shape differs."""
    keys = list(map(str, batches[0].keys()))
    for number, batch in enumerate(batches):
        if odd := set(keys) ^ set(batch.keys()):
            raise MissingColumnError(
                f"part {number} has the tensor columns {sorted(batch.keys())} where part 0 has {sorted(keys)}: "
                f"{sorted(odd)} must be in every part to be concatenated"
            )
    columns = {key: _concat_column(key, [batch.get(key) for batch in batches]) for key in keys}
    return from_columns(columns, sum(batch.batch_size[0] for batch in batches), batches[0].device)


def _concat_column(key: str, parts: list[Any]) -> Any:
    if any(jagged.is_jagged(part) for part in parts):
        if not all(jagged.is_jagged(part) for part in parts):
            raise LayoutError(f"column {key!r} is jagged in some parts and dense in others; make it one or the other")
        return jagged.concat_rows(parts)
    widths = [tuple(part.shape[1:]) for part in parts]
    if odd := next((number for number, width in enumerate(widths) if width != widths[0]), None):
        raise DataProtoError(
            f"column {key!r} is [B, {_spell(widths[0])}] in part 0 and [B, {_spell(widths[odd])}] in part {odd}; "
            "pad both to one width before concatenating"
        )
    return torch.cat(parts, dim=0)


def _spell(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
