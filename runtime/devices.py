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


def compute_repeatably(config: DictConfig) -> None:
    """Set torch's switches in this process so that equal inputs give equal bits, where the run wants that.

    ``actor_rollout_ref.rollout.deterministic`` decides, as it does for the batches of rollout; ``verlift parity`` turns
    it on. A CPU has nothing to set here (``runtime.environment`` fixes MKL's kernels). An operation without a
    repeatable form on a GPU warns. cuBLAS also needs ``CUBLAS_WORKSPACE_CONFIG``, set before the start.
    """
    if device_of(config).type != "cuda" or not config.actor_rollout_ref.rollout.deterministic:
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
