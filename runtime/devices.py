"""Which device a process computes on: one rule for model ranks and the rollout."""

from __future__ import annotations

import torch
from omegaconf import DictConfig

from runtime.errors import ConfigError


def device_of(config: DictConfig) -> torch.device:
    """``trainer.device`` in this process: ``cpu``, ``cuda``, or ``auto``, which takes a GPU where there is one.

    Raises ``ConfigError`` when a GPU is asked for and this process sees none.
    """
    wanted = config.trainer.device
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("trainer.device is cuda, and torch sees no GPU here; use auto or cpu, or a CUDA torch")
    return torch.device(wanted)
