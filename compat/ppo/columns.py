"""The tensor columns of a ``DataProto``, with errors that say what it has."""

from __future__ import annotations

from tensordict import TensorDict
from torch import Tensor

from compat.errors import MissingColumnError
from compat.protocol import DataProto


def tensors(data: DataProto) -> TensorDict:
    """The tensor columns. Raises ``MissingColumnError`` where there are none."""
    if data.batch is None:
        raise MissingColumnError("the DataProto has no tensor columns; trajectories have prompts and responses")
    return data.batch


def column(data: DataProto, name: str) -> Tensor:
    """A tensor column; ``MissingColumnError`` (a ``KeyError``, as in verl) lists those that there are."""
    batch = tensors(data)
    if name not in batch:
        raise MissingColumnError(f"the DataProto has no {name!r}; it has {sorted(batch.keys())}")
    tensor: Tensor = batch[name]
    return tensor


def compute_response_mask(data: DataProto) -> Tensor:
    """The columns of ``attention_mask [B, P+R]`` that belong to ``responses [B, R]``."""
    return column(data, "attention_mask")[:, -column(data, "responses").shape[1] :]


def response_mask(data: DataProto) -> Tensor:
    """``response_mask [B, R]``, or where no stage has set one, as up to verl 0.3, that of the attention mask."""
    return column(data, "response_mask") if "response_mask" in tensors(data) else compute_response_mask(data)


def ensure_response_mask(data: DataProto, multi_turn: bool = False) -> Tensor:
    """``response_mask [B, R]``, set where no stage has.

    multi_turn: as up to verl 0.4, ``loss_mask [B, P+R]`` says which tokens the model generated. Its columns of the
    responses become the ``response_mask``, so that every later stage has the same one.
    """
    if multi_turn and "loss_mask" in tensors(data):
        tensors(data)["response_mask"] = column(data, "loss_mask")[:, -column(data, "responses").shape[1] :]
    elif "response_mask" not in tensors(data):
        tensors(data)["response_mask"] = compute_response_mask(data)
    return column(data, "response_mask")
