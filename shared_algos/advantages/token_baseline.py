"""The optimal token baseline: one baseline for each (group, position), shared by two estimators.

At each position of a group the baseline is the mean reward to go, weighted by the path variance W of each trajectory:
the running sum of 1 - 2 * pi + sum of pi squared, the squared norm of the gradient with respect to the logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shared_algos.advantages.episodes import Episodes
from shared_algos.advantages.ranking import rank_in_groups
from shared_algos.reductions import all_finite
from shared_algos.scan import reverse_scan
from shared_algos.segments import Segments

NEEDS = frozenset({"old_log_probs", "sum_pi_squared"})
REFERENCE = "Optimal Token Baseline arXiv:2602.07078"


def less_token_baseline(episodes: Episodes, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Advantages and rewards to go, float64 ``[N]`` each, of tokens that share a baseline by group and position.

    positions: int64 ``[N]``, the place of each token in its row or among the row's mask-1 tokens.
    Raises ``NonFiniteError`` naming the row of a log-prob, sum or weight that is infinite, NaN or too large.
    """
    inputs, rows = episodes.inputs, episodes.segments
    groups = Segments.from_lengths(inputs.groups[inputs.live_rows].unique_consecutive(return_counts=True)[1])
    # A cell is numbered from its group's first token on: a group has at least as many tokens as positions.
    whole_rows = Segments.from_lengths(inputs.segments.lengths[inputs.live_rows])
    cell = rows.spread(groups.spread(whole_rows.offsets[groups.offsets[:-1]])) + positions
    returns = reverse_scan(episodes.rewards, rows, 1.0)
    baselines = _weighted_mean(returns, _path_variance(episodes), cell, whole_rows.num_tokens)
    alone = positions >= rows.spread(_shared_length(rows.lengths, groups))
    return returns - torch.where(alone, 0.0, baselines), returns


def _path_variance(episodes: Episodes) -> Tensor:
    """W, float64 ``[N]``; with ``rollout_is_weights`` each term is multiplied by the squared weight."""
    terms = 1 - 2 * episodes.column("old_log_probs").exp() + episodes.column("sum_pi_squared")
    if episodes.inputs.rollout_is_weights is not None:
        terms = terms * episodes.column("rollout_is_weights").square()
    if not all_finite(terms):
        rows = episodes.inputs.segments.rows[episodes.tokens]
        episodes.inputs.check_finite("the variance 1 - 2 * exp(old_log_probs) + sum_pi_squared", terms, rows)
    backwards = Segments.from_lengths(episodes.segments.lengths.flip(0))
    return reverse_scan(terms.flip(0), backwards, 1.0).flip(0)


def _weighted_mean(values: Tensor, weights: Tensor, cell: Tensor, count: int) -> Tensor:
    """The weighted mean over the tokens of each cell, given back to each of them, float64 ``[N]``.

    cell: int64 ``[N]``, the cell of each token, below ``count``.
    """
    total = _sum_in_order if values.device.type == "cpu" else _sum_by_sort
    return (total(values * weights, cell, count) / (total(weights, cell, count) + 1e-8))[cell]


def _sum_in_order(values: Tensor, cell: Tensor, count: int) -> Tensor:
    """Sum of each cell, ``[count]``. On a CPU, and only there, torch adds one value after the other."""
    return values.new_zeros(count).index_add_(0, cell, values)


def _sum_by_sort(values: Tensor, cell: Tensor, count: int) -> Tensor:
    """The same to the last bit on any device: members of a cell keep their order."""
    return Segments.from_lengths(cell.bincount(minlength=count)).sum(values[cell.argsort(stable=True)])


def _shared_length(lengths: Tensor, groups: Segments) -> Tensor:
    """The position from which a row has nobody to share a baseline with, int64 ``[L]``.

    As in verl only the longest row of a group has one, the second longest row's number of mask-1 tokens, even where the
    positions are those of the row and its mask has holes. In a group of one it is 0: there is no baseline.
    """
    starts = groups.offsets[:-1]
    second = lengths[rank_in_groups(lengths, groups)][(starts + 1).clamp(max=len(lengths) - 1)]
    second = groups.spread(torch.where(groups.lengths > 1, second, 0))
    return torch.where(lengths > second, second, torch.iinfo(torch.int64).max)
