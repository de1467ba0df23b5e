"""Whitening: advantages shifted and scaled to mean 0 and variance 1 over the mask-1 tokens that take part."""

from __future__ import annotations

import torch
from torch import Tensor

from shared_algos.advantages.outcomes import Outcomes
from shared_algos.reductions import masked_whiten
from shared_algos.segments import Segments


def whiten_tokens(advantages: Tensor, segments: Segments) -> Tensor:
    """``masked_whiten`` of ``advantages [N]`` that are mask-1 tokens all; float64 ``[N]``."""
    return masked_whiten(advantages, torch.ones_like(advantages, dtype=torch.bool), segments)


def whiten_outcomes(advantages: Tensor, outcomes: Outcomes) -> Tensor:
    """``whiten_tokens`` of ``advantages [S]`` repeated over the mask-1 tokens of each last output; float64 ``[S]``.

    A session's other outputs get its result and do not enter the statistics. Tokens of a session are equal, so that
    each advantage is weighted with their number instead of repeated.
    """
    lengths, whole = outcomes.lengths, Segments.from_lengths([len(advantages)], advantages.device)
    tokens = lengths.sum()
    deviations = advantages - whole.sum(advantages * lengths) / tokens.clamp(min=1)
    variance = whole.sum(deviations.square() * lengths) / (tokens - 1).clamp(min=1)
    return deviations * torch.rsqrt(variance + 1e-8)
