"""``verl.utils.groupwise``: group labels as numbers, mean and spread of each group."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from compat.utils.errors import PartitionError


def as_torch_index(index: Any, device: torch.device | str | None = None) -> Tensor:
    """Group labels of any kind as int64 ``[N]``.

    Integers, whole floats and numerals keep their value; other labels are numbered in their sorted order.
    """
    labels = index.detach().cpu().double().numpy() if isinstance(index, Tensor) else np.asarray(index)
    labels = labels.reshape(-1)
    if labels.dtype.kind == "f" and np.allclose(labels, np.rint(labels), rtol=0.0, atol=1e-6):
        labels = np.rint(labels).astype(np.int64)
    if labels.dtype.kind not in "iub":
        labels = _numerals(labels)
    return torch.from_numpy(labels.astype(np.int64)).to(device or "cpu")


def _numerals(labels: np.ndarray) -> np.ndarray:
    if labels.dtype.kind != "f":  # 1.5 is no numeral of a group
        try:
            return labels.astype(np.int64)
        except (TypeError, ValueError):
            pass
    try:
        return np.unique(labels, return_inverse=True)[1]
    except TypeError:  # labels of several types have no order among them
        return np.unique(labels.astype(str), return_inverse=True)[1]


@torch.no_grad()
def group_mean_std(
    scores: Tensor, gidx: Tensor, eps: float = 1e-6, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, unbiased standard deviation and size of each group: three float32 ``[G]``.

    scores: ``[N]``. gidx: int ``[N]``, 0 to G-1. eps: the least variance. A group of one has mean 0 and deviation 1.
    Sums run in float64.
    """
    target = torch.device(device or "cpu")
    values, groups = scores.reshape(-1).to(target, torch.float64), gidx.reshape(-1).to(target, torch.long)
    if len(values) != len(groups):
        raise PartitionError(f"{len(values)} scores and {len(groups)} group numbers: give one for each row")
    size = int(groups.max()) + 1 if len(groups) else 0
    empty = torch.zeros(size, dtype=torch.float64, device=target)
    count = empty.index_add(0, groups, torch.ones_like(values))
    mean = empty.index_add(0, groups, values) / count.clamp_min(1)
    squares = empty.index_add(0, groups, (values - mean[groups]).square())
    std = (squares / (count - 1).clamp_min(1)).clamp_min(eps).sqrt()
    single = count <= 1
    mean, std = mean.masked_fill(single, 0.0), std.masked_fill(single, 1.0)
    return mean.float(), std.float(), count.float()
