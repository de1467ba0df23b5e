"""PF-PPO on a ``DataProto``."""

from __future__ import annotations

from typing import Any

import torch

from compat.ppo.columns import column, tensors
from compat.protocol import DataProto
from shared_algos.pf_ppo import resample


def compute_pf_ppo_reweight_data(data: DataProto, reweight_method: str = "pow", weight_pow: float = 2.0) -> DataProto:
    """A batch of as many rows, drawn from ``data`` with replacement by their ``token_level_scores``.

    Whole rows are drawn: every column, uid and key of a row moves together, and so do lists of B values in
    ``meta_info``. Rows whose ``response_mask`` is all 0 stay where they are. Draws come from torch's global generator.
    Raises ``AlgorithmError`` (a ``ValueError``, as in verl) for an unknown method.
    """
    scores = column(data, "token_level_scores").sum(dim=-1, dtype=torch.float64).cpu()
    alive = column(data, "response_mask").bool().any(dim=-1).cpu() if "response_mask" in tensors(data) else None
    rows = resample(scores, reweight_method, weight_pow, torch.default_generator, alive)
    drawn = data.select_idxs(rows)
    drawn.meta_info = {key: _drawn(value, rows.tolist()) for key, value in data.meta_info.items()}
    return drawn


def _drawn(value: Any, rows: list[int]) -> Any:
    """A list of B values, one a row, at ``rows``; anything else as it is."""
    is_of_rows = isinstance(value, list) and len(value) == len(rows)
    return [value[row] for row in rows] if is_of_rows else value
