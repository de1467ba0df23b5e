"""A small padded batch, and registries that forget what a test registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from compat.protocol import DataProto
from shared_algos.advantages import ADVANTAGES
from shared_algos.policy_losses import POLICY_LOSSES


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (ADVANTAGES, POLICY_LOSSES):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.fixture
def make_batch() -> Callable[..., DataProto]:
    """``make_batch(**columns)``: 4 rows of up to 3 response tokens of the uids a, a, b, b, and 2 prompt tokens."""

    def make(**columns: torch.Tensor) -> DataProto:
        mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]])
        scores = torch.zeros(4, 3)
        scores[torch.arange(4), mask.sum(1) - 1] = torch.tensor([1.0, 0.0, 3.0, 1.0])
        tensors = {
            "prompts": torch.ones(4, 2, dtype=torch.int64),
            "responses": torch.ones(4, 3, dtype=torch.int64),
            "attention_mask": torch.cat([torch.ones(4, 2, dtype=torch.int64), mask], dim=1),
            "token_level_scores": scores,
            "token_level_rewards": scores,
            "old_log_probs": torch.full((4, 3), -1.0),
            **columns,
        }
        uids = np.array(["a", "a", "b", "b"], dtype=object)
        return DataProto.from_dict(
            tensors=tensors, non_tensors={"uid": uids}, meta_info={"global_token_num": [5, 4, 3, 5]}
        )

    return make
