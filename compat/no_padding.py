"""``verl.workers.utils.padding``: batches of verl's padded layout to jagged ones and back.

A model gives a value for every token of prompt and response, at position t about token t+1. What is cut out for the
response therefore begins one token before it.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor

from compat import jagged
from compat.errors import LayoutError, MissingColumnError
from compat.padding import pack_sequences, pad_right, response_to_nested
from compat.tensordict_utils import assign_non_tensor_data, get_non_tensor_data
from shared_algos.segments import Segments

__all__ = [
    "build_attention_mask_from_nested",
    "embeds_padding_2_no_padding",
    "left_right_2_no_padding",
    "no_padding_2_padding",
    "response_from_nested",
    "response_to_nested",
]

_TOKEN_COLUMNS = ("routed_experts", "teacher_logprobs", "teacher_ids")
"""Further columns ``[B, P+R, ...]`` of whole sequences that verl carries along."""


def left_right_2_no_padding(data: TensorDict) -> TensorDict:
    """Make the columns of whole sequences jagged, in place, and return the batch.

    data: ``input_ids`` and ``attention_mask`` ``[B, P+R]``, ``position_ids`` ``[B, P+R]`` or ``[B, k, P+R]``, and
    ``response_mask [B, R]``, which stays padded and gets the second name ``loss_mask``. Adds the shared values
    ``max_seq_len``, ``max_response_len`` and ``indices`` (the places of the tokens in the flattened ``[B * (P+R)]``).
    Raises ``MissingColumnError`` naming the columns that are not there.
    """
    _require(data, "input_ids", "attention_mask", "response_mask", "position_ids")
    mask = data["attention_mask"]
    segments = Segments.from_lengths(mask.sum(1))
    assign_non_tensor_data(data, "max_seq_len", mask.shape[1])
    assign_non_tensor_data(data, "max_response_len", data["response_mask"].shape[1])
    assign_non_tensor_data(data, "indices", mask.flatten().nonzero().flatten())
    data["input_ids"] = jagged.jagged(pack_sequences(data["input_ids"], mask), segments)
    data["position_ids"] = _without_padding(data["position_ids"], mask, segments)
    data["loss_mask"] = data["response_mask"]
    for key in _TOKEN_COLUMNS:
        column = data.get(key, None)
        if isinstance(column, Tensor) and not column.is_nested:
            data[key] = jagged.jagged(pack_sequences(column, mask), segments)
    return data


def _without_padding(position_ids: Tensor, mask: Tensor, segments: Segments) -> Tensor:
    if position_ids.dim() == 2:
        return jagged.jagged(pack_sequences(position_ids, mask), segments)
    last = pack_sequences(position_ids.movedim(1, -1), mask)
    return jagged.jagged(last.T.contiguous(), segments, ragged_dim=2)


def no_padding_2_padding(tensor: Tensor, data: TensorDict) -> Tensor:
    """What a model said about the tokens of the responses, right-padded with 0: ``[B, R, ...]``.

    tensor: a value for every token, jagged ``[B, j, ...]`` or packed ``[T, ...]``. data: ``prompts`` and ``responses``,
    both jagged, or both padded beside ``attention_mask [B, P+R]``. R is the padded width, for jagged responses the
    shared value ``max_response_len`` or else the longest one. Raises ``LayoutError`` naming both token counts, or the
    row that has no prompt and so nothing that predicts its first token.
    """
    values = jagged.unjag(tensor)[0] if jagged.is_jagged(tensor) else tensor
    prompts, responses, width = _lengths(data)
    sequences = Segments.from_lengths(prompts + responses)
    if sequences.num_tokens != values.shape[0]:
        raise LayoutError(
            f"the output has {values.shape[0]} values where prompts and responses have {sequences.num_tokens} tokens"
        )
    if bool((prompts == 0).any()):
        raise LayoutError(f"row {int((prompts == 0).nonzero()[0])} has no prompt, so nothing predicts its first token")
    segments = Segments.from_lengths(responses)
    return pad_right(values[_predictors(sequences, segments)], segments, width)


def _lengths(data: TensorDict) -> tuple[Tensor, Tensor, int]:
    """Tokens of each prompt and of each response, and the padded width of the responses."""
    _require(data, "prompts", "responses")
    prompts, responses = data["prompts"], data["responses"]
    if jagged.is_jagged(prompts):
        lengths = jagged.row_lengths(responses)
        width = int(get_non_tensor_data(data, "max_response_len", -1))
        return jagged.row_lengths(prompts), lengths, width if width >= 0 else int(lengths.max())
    _require(data, "attention_mask")
    mask = data["attention_mask"]
    return mask[:, : prompts.shape[1]].sum(1), mask[:, prompts.shape[1] :].sum(1), responses.shape[1]


def _predictors(sequences: Segments, responses: Segments) -> Tensor:
    """Packed places of the tokens that predict the response tokens, which end each sequence: int64 ``[T_response]``."""
    starts = sequences.offsets[1:] - responses.lengths - 1
    return responses.positions + responses.spread(starts)


def response_from_nested(tensor: Tensor, response_mask: Tensor) -> Tensor:
    """What a model said about the tokens of the responses, jagged ``[B, j]``.

    tensor: a value for every token of prompt and response, jagged. response_mask: jagged, of the responses; the result
    shares its offsets. The responses end the sequences.
    """
    values, sequences = jagged.unjag(tensor)
    responses = jagged.unjag(response_mask)[1]
    if bool((short := sequences.lengths <= responses.lengths).any()):
        raise LayoutError(f"row {int(short.nonzero()[0])} has no prompt, so nothing predicts its first token")
    return jagged.jagged(values[_predictors(sequences, responses)], responses)


def build_attention_mask_from_nested(input_ids: Tensor, max_seq_len: int | None = None) -> Tensor:
    """1 where a token of jagged ``input_ids`` would lie in a right-padded ``[B, max_seq_len]``, int32.

    ``max_seq_len`` is the longest row by default.
    """
    lengths = jagged.row_lengths(input_ids)
    width = int(lengths.max()) if max_seq_len is None else max_seq_len
    return (torch.arange(width, device=lengths.device) < lengths[:, None]).to(torch.int32)


def embeds_padding_2_no_padding(data: TensorDict) -> TensorDict:
    """Make ``prompt_embeds [B, L, d]`` and ``prompt_embeds_mask [B, L]`` jagged, in place, and return the batch.

    ``negative_prompt_embeds`` and its mask likewise, where they are there. The masks become bool.
    """
    for key in ("prompt_embeds", "negative_prompt_embeds"):
        if key == "prompt_embeds" or isinstance(data.get(key, None), Tensor):
            _require(data, key, f"{key}_mask")
            mask = data[f"{key}_mask"].bool()
            segments = Segments.from_lengths(mask.sum(1))
            data[key] = jagged.jagged(pack_sequences(data[key], mask), segments)
            data[f"{key}_mask"] = jagged.jagged(mask[mask], segments)
    return data


def _require(data: TensorDict, *keys: str) -> None:
    if missing := [key for key in keys if key not in data]:
        raise MissingColumnError(f"the batch has no {missing}; it has {sorted(map(str, data.keys()))}")
