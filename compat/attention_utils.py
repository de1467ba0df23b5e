"""``verl.utils.attention_utils``: padded hidden states to packed ones and back, in plain torch on any device.

They have the signatures of ``flash_attn.bert_padding``, whose results they give.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from compat.errors import LayoutError

__all__ = ["index_first_axis", "pad_input", "rearrange", "unpad_input"]


def index_first_axis(tensor: Tensor, indices: Tensor) -> Tensor:
    """The entries ``indices [T]`` of ``tensor [N, ...]`` on dim 0: ``[T, ...]``."""
    if tensor.ndim < 2:
        raise LayoutError(f"index_first_axis needs two dimensions or more, got a tensor {tuple(tensor.shape)}")
    return tensor[indices]


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Put ``hidden_states [T, ...]`` at the places ``indices [T]`` of a batch ``[batch, seqlen, ...]`` of zeros."""
    padded = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return padded.index_copy(0, indices, hidden_states).view(batch, seqlen, *hidden_states.shape[1:])


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The entries of ``hidden_states [B, L, ...]`` that a mask keeps, packed.

    attention_mask: ``[B, L]``, 1 at tokens; unused_mask: ``[B, L]``, 1 at places to keep beside them. Returns the
    packed states ``[T, ...]``, their places in the flattened batch ``[T]``, cumulative lengths int32 ``[B+1]``, the
    longest length, and the number of tokens of each row, int32 ``[B]``.
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    offsets = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    tokens = attention_mask.sum(dim=-1, dtype=torch.int32)
    return hidden_states.flatten(0, 1)[indices], indices, offsets, int(lengths.max()), tokens


def rearrange(*args: Any, **kwargs: Any) -> Any:
    """``einops.rearrange``; raises ``LayoutError`` where einops is not installed."""
    try:
        from einops import rearrange as einops_rearrange
    except ImportError:
        raise LayoutError("rearrange needs einops, which is not installed: pip install einops") from None
    return einops_rearrange(*args, **kwargs)
