"""Causal attention over packed sequences, one at a time, so that no sequence sees or is changed by its neighbours.

A block-diagonal mask gives the right values but its bits depend on a sequence's place in the pack. Calling the kernel
once a sequence makes the result the same bits alone, packed, permuted or in a subset, and costs the sum of squared
lengths instead of the square of their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from runtime.errors import ConfigError

PACKED_CAUSAL = "packed_causal"
"""The value of ``attn_implementation`` that selects :func:`packed_causal_attention`."""


def packed_causal_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    sequence_lengths: Sequence[int],
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **features: Any,
) -> tuple[Tensor, None]:
    """Attend causally within each sequence of a pack; called by transformers' attention modules.

    query: ``[1, heads, S, head_dim]``. key, value: ``[1, kv_heads, S, head_dim]``. sequence_lengths: how S divides into
    sequences; a keyword of the model call, which transformers hands down to every layer, and again when a checkpointed
    layer is recomputed. Returns ``[1, S, heads, head_dim]`` and no attention weights.

    Raises ConfigError for what this function would silently leave out: a mask, soft-capping, sinks, a position bias,
    or a sequence longer than the sliding window.
    """
    _refuse_unsupported(module, attention_mask, features)
    if sliding_window is not None and max(sequence_lengths) > sliding_window:
        raise ConfigError(
            f"a sequence of {max(sequence_lengths)} tokens is longer than the model's sliding window {sliding_window}; "
            "set use_remove_padding=false or shorten data.max_prompt_length + data.max_response_length"
        )
    lengths = list(sequence_lengths)
    attended = [
        scaled_dot_product_attention(
            *sequence, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
        )
        for sequence in zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True)
    ]
    return torch.cat(attended, dim=2).transpose(1, 2).contiguous(), None


def _refuse_unsupported(module: nn.Module, attention_mask: Tensor | None, features: dict[str, Any]) -> None:
    found = [name for name in ("softcap", "s_aux", "position_bias") if features.get(name) is not None]
    if attention_mask is not None:
        found.append("attention_mask")
    if found:
        raise ConfigError(
            f"{type(module).__name__} uses {', '.join(found)}, which packed attention does not compute; "
            "set use_remove_padding=false to train this model"
        )


# Registered without a mask function of the same name: transformers then builds no mask for it.
AttentionInterface.register(PACKED_CAUSAL, packed_causal_attention)
