"""Trajectories on the packed layout, as a padded ``DataProto``; ``compat.rows`` is the way back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compat.padding import pad_left, pad_right, pad_sequences
from compat.protocol import DataProto
from runtime.fields import LEVELS, Level
from runtime.identity import TrajectoryKey
from runtime.trajectories import TrajectoryBatch


def to_dataproto(batch: TrajectoryBatch, prompt_width: int, response_width: int, pad_token_id: int) -> DataProto:
    """Pad trajectories to fixed widths, as verl's legacy ``AgentLoopWorker._postprocess`` does.

    Tensors are ``[B, prompt_width]``, ``[B, response_width]`` or, for ``input_ids``, ``attention_mask`` and
    ``position_ids``, ``[B, prompt_width + response_width]``. Only token ids are padded with ``pad_token_id``.
    """
    tensors = pad_sequences(
        batch["prompts"], batch["responses"], batch.prompts, batch.responses, prompt_width, response_width, pad_token_id
    )
    tensors["prompts"] = pad_left(batch["prompts"], batch.prompts, prompt_width, pad_token_id)
    tensors["responses"] = pad_right(batch["responses"], batch.responses, response_width, pad_token_id)
    for name, column in batch.columns.items():
        if name not in tensors:
            tensors[name] = column if LEVELS[name] is Level.ROW else pad_right(column, batch.responses, response_width)
    arrays = {**batch.objects, **key_columns(batch.keys)}
    return DataProto.from_dict(tensors=tensors, non_tensors=arrays)


def key_columns(keys: Sequence[TrajectoryKey]) -> dict[str, np.ndarray]:
    """``uid`` and ``session_id`` of each row; a legacy row is the only output of its session, so its index is 0."""
    return {
        "uid": np.array([key.uid for key in keys], dtype=object),
        "session_id": np.array([key.session_id for key in keys], dtype=object),
    }
