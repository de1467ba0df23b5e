"""A sharded model's weights put together, for the rollout, for comparison and for files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from runtime.digests import tensor_digest

# The engine's models hold the transformer under this name; Hugging Face names start after it.
PREFIX = "hf."

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer type of each element size."""


def full_weights(model: nn.Module, rank: int) -> dict[str, np.ndarray]:
    """Weights under their Hugging Face names as float32 numpy arrays; a shared weight comes once, under its first name.

    Collective; empty except on rank 0. Numpy, because Ray hands it over without a copy, and tensors slowly.
    """
    weights: dict[str, np.ndarray] = {}
    for name, parameter in model.named_parameters():
        whole = _whole(parameter)
        if rank == 0:
            weights[name.removeprefix(PREFIX)] = whole.float().cpu().numpy()
    return weights


def digest_of(weights: Mapping[str, np.ndarray]) -> dict[str, str]:
    """``tensor_digest`` of each array."""
    return {name: tensor_digest(torch.from_numpy(array)) for name, array in weights.items()}


@torch.no_grad()
def _whole(parameter: nn.Parameter) -> Tensor:
    data: Any = parameter.detach()
    return data.full_tensor() if isinstance(data, DTensor) else data.clone()


@torch.no_grad()
def fingerprint_of(parameters: Iterable[nn.Parameter]) -> int:
    """The sum of this rank's part of ``parameters``, their bits read as integers."""
    total = 0
    for parameter in parameters:
        data: Any = parameter.detach()
        local = data.to_local() if isinstance(data, DTensor) else data
        total += int(local.reshape(-1).view(_BITS[local.element_size()]).sum(dtype=torch.int64))
    return total
