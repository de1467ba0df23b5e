"""Statistics inside groups of outcomes. A group is one segment: ``scores [S]`` lie group after group."""

from __future__ import annotations

import torch
from torch import Tensor

from shared_algos.segments import Segments


def group_mean(scores: Tensor, groups: Segments) -> Tensor:
    """Mean of each group, float64 ``[G]``.

    Taken relative to the group's first score, so that the mean of equal scores is that score to the last bit; a plain
    sum of seven times 3.3 is not, and dividing the remainder by the tiny std that it causes makes an advantage of it.
    """
    first = scores.double()[groups.offsets[:-1]]
    return first + groups.sum(scores.double() - groups.spread(first)) / groups.lengths


def center_groups(scores: Tensor, groups: Segments) -> Tensor:
    """Scores less the baseline of their group, float64 ``[S]``; the baseline is the mean, or 0 in a group of one."""
    baseline = torch.where(groups.lengths == 1, 0.0, group_mean(scores, groups))
    return scores.double() - groups.spread(baseline)


def group_std(scores: Tensor, groups: Segments) -> Tensor:
    """Unbiased standard deviation (n-1) of each group, float64 ``[G]``; 1 in a group of one."""
    squares = groups.sum(center_groups(scores, groups).square())
    return torch.where(groups.lengths == 1, 1.0, (squares / (groups.lengths - 1).clamp(min=1)).sqrt())
