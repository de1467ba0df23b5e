"""Padded columns to packed ones and back, without a loop over rows.

A legacy batch holds prompts left-padded to one width P and responses right-padded to one width R; ``input_ids`` and its
companions are the two side by side, ``[B, P+R]``, so that a row has padding at both ends. The packed layout is
``values [T]`` with ``Segments``. Columns may have dimensions behind the tokens: ``[B, W, ...]`` and ``[T, ...]``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from compat import jagged
from compat.errors import LayoutError
from compat.tensordicts import list_of_dict_to_tensordict
from shared_algos.segments import Segments

__all__ = [
    "list_of_dict_to_tensordict",
    "pack_left_padded",
    "pack_right_padded",
    "pack_sequences",
    "pad_left",
    "pad_right",
    "pad_sequences",
    "position_ids_of",
    "response_to_nested",
]

Lengths = Tensor | Sequence[int]


def pack_left_padded(padded: Tensor, lengths: Lengths) -> Tensor:
    """The last ``lengths[b]`` entries of each row of ``padded [B, P, ...]``, packed: ``[T, ...]``."""
    row_lengths = _row_lengths(padded, lengths)
    return padded[_places(padded) >= padded.shape[1] - row_lengths[:, None]]


def pack_right_padded(padded: Tensor, lengths: Lengths) -> Tensor:
    """The first ``lengths[b]`` entries of each row of ``padded [B, R, ...]``, packed: ``[T, ...]``."""
    row_lengths = _row_lengths(padded, lengths)
    return padded[_places(padded) < row_lengths[:, None]]


def pack_sequences(padded: Tensor, attention_mask: Tensor) -> Tensor:
    """The entries of ``padded [B, P+R, ...]`` whose ``attention_mask [B, P+R]`` is not 0, packed: ``[T, ...]``.

    Row b has ``attention_mask[b].sum()`` tokens: its prompt, then its response.
    """
    if padded.shape[:2] != attention_mask.shape:
        raise LayoutError(
            f"attention_mask {tuple(attention_mask.shape)} does not cover the padded column {tuple(padded.shape)}"
        )
    return padded[attention_mask.bool()]


def pad_right(values: Tensor, segments: Segments, width: int, fill: float = 0) -> Tensor:
    """Rows of ``values [T, ...]`` at the left of ``[B, width, ...]``, ``fill`` behind them."""
    return _scatter(values, segments, width, segments.positions, fill)


def pad_left(values: Tensor, segments: Segments, width: int, fill: float = 0) -> Tensor:
    """Rows of ``values [T, ...]`` at the right of ``[B, width, ...]``, ``fill`` before them."""
    return _scatter(values, segments, width, segments.positions + width - segments.spread(segments.lengths), fill)


def pad_sequences(
    prompts: Tensor,
    responses: Tensor,
    prompt_segments: Segments,
    response_segments: Segments,
    prompt_width: int,
    response_width: int,
    pad_token_id: int = 0,
) -> dict[str, Tensor]:
    """``input_ids``, ``attention_mask`` and ``position_ids``, int64 ``[B, P+R]``, of packed prompts and responses.

    prompts, responses: token ids ``[T_prompt]``, ``[T_response]``. Prompts are left-padded, responses right-padded, as
    verl's legacy ``AgentLoopWorker._postprocess`` lays them out.
    """
    token_ids = [
        pad_left(prompts, prompt_segments, prompt_width, pad_token_id),
        pad_right(responses, response_segments, response_width, pad_token_id),
    ]
    exists = [
        pad_left(torch.ones_like(prompts, dtype=torch.int64), prompt_segments, prompt_width),
        pad_right(torch.ones_like(responses, dtype=torch.int64), response_segments, response_width),
    ]
    attention_mask = torch.cat(exists, dim=1)
    return {
        "input_ids": torch.cat(token_ids, dim=1).long(),
        "attention_mask": attention_mask,
        "position_ids": position_ids_of(attention_mask),
    }


def position_ids_of(attention_mask: Tensor) -> Tensor:
    """Place of each token among the tokens of its row, int64 ``[B, P+R]``.

    Padding before the first token gets 0, padding behind the last token the last token's place, as in verl.
    """
    return (attention_mask.cumsum(dim=-1) - 1).clamp(min=0)


def response_to_nested(tensor: Tensor, response_mask: Tensor | Segments | Sequence[int]) -> Tensor:
    """Cut ``tensor [B, R, ...]`` to its response lengths: jagged ``[B, j, ...]``.

    response_mask: a jagged column ``[B, j]``, whose offsets the result then shares, ``Segments``, or lengths ``[B]``.
    A padded ``[B, R]`` mask raises ``LayoutError``: it is 0 inside a response too (tool observations), so it does not
    tell the length.
    """
    segments = _response_segments(response_mask)
    return jagged.jagged(pack_right_padded(tensor, segments.lengths), segments)


def _response_segments(response_mask: Tensor | Segments | Sequence[int]) -> Segments:
    if isinstance(response_mask, Segments):
        return response_mask
    if jagged.is_jagged(response_mask):
        return jagged.unjag(response_mask)[1]
    if isinstance(response_mask, Tensor) and response_mask.dim() != 1:
        raise LayoutError(
            f"response lengths cannot be read off a padded mask {tuple(response_mask.shape)}: it is 0 on tool "
            "observations too; pass attention_mask[:, -R:].sum(1), a jagged mask, or Segments"
        )
    return Segments.from_lengths(response_mask)


def _places(padded: Tensor) -> Tensor:
    return torch.arange(padded.shape[1], device=padded.device)


def _row_lengths(padded: Tensor, lengths: Lengths) -> Tensor:
    """Lengths as int64 ``[B]``, checked against the rows and the width of ``padded``."""
    if padded.dim() < 2:
        raise LayoutError(f"a padded column must be [B, width, ...], got {tuple(padded.shape)}")
    row_lengths = torch.as_tensor(lengths, device=padded.device).long()
    if row_lengths.shape != padded.shape[:1]:
        raise LayoutError(f"{row_lengths.numel()} row lengths given for a padded column of {padded.shape[0]} rows")
    _check_fits(row_lengths, padded.shape[1])
    return row_lengths


def _check_fits(lengths: Tensor, width: int) -> None:
    outside = (lengths > width) | (lengths < 0)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise LayoutError(f"row {row} has {int(lengths[row])} tokens, which does not fit a width of {width}")


def _scatter(values: Tensor, segments: Segments, width: int, places: Tensor, fill: float) -> Tensor:
    if values.dim() == 0 or values.shape[0] != segments.num_tokens:
        raise LayoutError(f"values {tuple(values.shape)} do not match segments of {segments.num_tokens} tokens")
    _check_fits(segments.lengths, width)
    padded = values.new_full((segments.num_rows, width, *values.shape[1:]), fill)
    padded[segments.rows, places] = values
    return padded
