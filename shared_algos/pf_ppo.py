"""PF-PPO: whole rows of a batch are drawn anew, those with telling rewards more often (arXiv:2409.06957)."""

from __future__ import annotations

import difflib

import torch
from torch import Tensor

from shared_algos.errors import AlgorithmError, NonFiniteError

METHODS = ("pow", "max_min", "max_random")


def check_method(method: str) -> None:
    """Raise ``AlgorithmError`` unless ``method`` is one of ``METHODS``."""
    if method not in METHODS:
        near = difflib.get_close_matches(str(method), METHODS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise AlgorithmError(f"unknown reweight_method {method!r}; {hint}known are {', '.join(METHODS)}")


def reweight(scores: Tensor, method: str, weight_pow: float, alive: Tensor | None = None) -> Tensor:
    """How likely each row is to be drawn, float64 ``[B]``, not normalised, as verl's ``compute_weights``.

    scores: ``[B]``, the reward of each row. method: ``pow`` (``|score| ** weight_pow``), ``max_min`` (1 for rows with
    the largest or the smallest score, else 0) or ``max_random`` (0.4 for rows with the largest, else 0.1), each plus
    1e-8. alive: bool ``[B]``, the rows that take part; the weight of others is 0.

    Raises ``AlgorithmError`` for an unknown method, ``NonFiniteError`` naming the row where a score that takes part, or
    its power, is not finite.
    """
    check_method(method)
    alive = torch.ones_like(scores, dtype=torch.bool) if alive is None else alive.bool()
    weights = torch.zeros_like(scores, dtype=torch.float64)
    if alive.any():
        _check("the score", scores, scores, alive)
        weights[alive] = _weights(scores.double()[alive], method, weight_pow) + 1e-8
        _check(f"the score to the power of weight_pow {weight_pow}", weights, scores, alive)
    return weights


def resample(
    scores: Tensor, method: str, weight_pow: float, generator: torch.Generator, alive: Tensor | None = None
) -> Tensor:
    """The row that each place of the new batch is filled with, int64 ``[B]``; drawn with replacement by ``reweight``.

    scores, alive: ``[B]``. Only rows that take part are drawn, and only their places are filled anew: others (padding,
    failures) stay where they are, and neither their scores nor their number enters. Raises as ``reweight``.
    """
    weights = reweight(scores, method, weight_pow, alive)
    rows = torch.arange(len(scores), device=scores.device)
    places = rows.clone() if alive is None else rows[alive.bool()]
    if places.numel():
        relative = weights[places] / weights.max()  # the sum of large ones must not overflow
        rows[places] = places[torch.multinomial(relative, len(places), replacement=True, generator=generator)]
    return rows


def _weights(scores: Tensor, method: str, weight_pow: float) -> Tensor:
    if method == "pow":
        return scores.abs().pow(weight_pow)
    if method == "max_min":
        return ((scores == scores.max()) | (scores == scores.min())).double()
    return torch.where(scores == scores.max(), 0.4, 0.1).double()


def _check(name: str, values: Tensor, scores: Tensor, alive: Tensor) -> None:
    bad = (alive & ~values.isfinite()).nonzero().squeeze(1)
    if bad.numel():
        row = int(bad[0])
        raise NonFiniteError(f"{name} of row {row} is {float(values[row])} (score {float(scores[row])}), not finite")
