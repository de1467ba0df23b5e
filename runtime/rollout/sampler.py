"""Sampling by counter: a token depends on its logits, its request's seed and its place in the response alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from runtime.rollout.types import SamplingParams


class Draw(NamedTuple):
    """One sampled token a row: tokens int64 ``[N]``, and log_probs float32 ``[N]`` over the full vocabulary."""

    tokens: Tensor
    log_probs: Tensor


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) of token ``position`` of the request with ``seed``.

    Philox is a counter-based generator (Salmon et al., 2011): the number is computed from (seed, position) directly, so
    it does not matter how many numbers were drawn before, or for whom.
    """
    word = int(np.random.Philox(key=seed, counter=position).random_raw())
    return (word >> 11) * 2.0**-53  # the upper 53 bits, all that a float64 in [0, 1) can hold


class Sampler:
    """Draws the next token of each row of a batch.

    Temperature, then top-k, then top-p, as vLLM does. Log-probs are of softmax(logits / temperature) before top-k and
    top-p; a greedy row uses temperature 1. All in float64, row by row, so that no row's bits depend on its neighbours.
    """

    def __init__(self, params: Sequence[SamplingParams], device: torch.device | str = "cpu") -> None:
        self._params = list(params)
        self._greedy = torch.tensor([p.greedy for p in params], device=device)
        self._temperature = torch.tensor(
            [1.0 if p.greedy else p.temperature for p in params], dtype=torch.float64, device=device
        )
        self._filtered = [not p.greedy and (p.top_k > 0 or p.top_p < 1) for p in params]

    def __call__(self, logits: Tensor, position: int) -> Draw:
        """Draw token ``position`` of every row from ``logits [N, V]``; rows that hold NaN get log-prob NaN."""
        scaled = logits.double() / self._temperature[:, None]
        weights = (scaled - scaled.amax(-1, keepdim=True)).exp_()
        cdf = weights.cumsum(-1)
        log_total = cdf[:, -1].log()
        for row, filtered in enumerate(self._filtered):
            if filtered:
                cdf[row] = keep_top(weights[row], self._params[row]).cumsum(-1)
        tokens = torch.where(self._greedy, logits.argmax(-1), invert(cdf, self._uniforms(position, logits.device)))
        log_probs = weights.gather(-1, tokens[:, None])[:, 0].log() - log_total
        return Draw(tokens, log_probs.float())

    def select(self, rows: Sequence[int]) -> Sampler:
        """The sampler of ``rows`` alone."""
        return Sampler([self._params[row] for row in rows], self._temperature.device)

    def _uniforms(self, position: int, device: torch.device) -> Tensor:
        numbers = [0.0 if p.greedy else uniform(p.seed, position) for p in self._params]
        return torch.tensor(numbers, dtype=torch.float64, device=device)


def invert(cdf: Tensor, uniforms: Tensor) -> Tensor:
    """The first index whose cumulative weight exceeds ``uniform * total``: int64 ``[N]`` from ``cdf [N, V]``.

    ``uniform * total`` may round up to the total, which no entry exceeds; the largest number below it then stands in,
    and the last token of positive weight is drawn. A token of weight 0 repeats the sum before it and is never first.
    """
    totals = cdf[:, -1:]
    targets = torch.minimum(uniforms[:, None] * totals, torch.nextafter(totals, torch.zeros_like(totals)))
    return torch.searchsorted(cdf, targets, right=True)[:, 0].clamp_(max=cdf.shape[-1] - 1)


def keep_top(weights: Tensor, params: SamplingParams) -> Tensor:
    """``weights [V]`` with all but the top-k and, of their sum, the top-p set to 0; among equals the lower id stays."""
    ranked, order = weights.sort(descending=True, stable=True)
    if params.top_k > 0:
        ranked[params.top_k :] = 0
    before = ranked.cumsum(-1) - ranked
    # The most likely token has nothing before it, so it stays for any top_p.
    ranked[before >= params.top_p * ranked.sum()] = 0
    return torch.zeros_like(weights).scatter_(0, order, ranked)
