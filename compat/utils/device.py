"""``verl.utils.device``: what this process computes on, a GPU where torch sees one, else the CPU."""

from __future__ import annotations

import logging
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from omegaconf import DictConfig

logger = logging.getLogger(__name__)

is_cuda_available = torch.cuda.is_available()
is_npu_available = False
"""NPUs are not supported here."""


def is_torch_npu_available(check_device: bool = True) -> bool:  # noqa: ARG001
    """False: NPUs are not supported here."""
    return False


def is_device_available() -> bool:
    """Whether there is an accelerator."""
    return is_cuda_available


def get_device_name() -> str:
    """``cuda`` or ``cpu``."""
    return "cuda" if is_cuda_available else "cpu"


def get_torch_device() -> ModuleType:
    """``torch.cuda`` or ``torch.cpu``."""
    return torch.cuda if is_cuda_available else torch.cpu


def get_device_id() -> int:
    """The number of the current GPU; 0 on a CPU."""
    return torch.cuda.current_device() if is_cuda_available else 0


def get_device_capability(device_id: int = 0) -> tuple[int | None, int | None]:
    """Compute capability of a GPU, or (None, None)."""
    return torch.cuda.get_device_capability(device_id) if is_cuda_available else (None, None)


def get_nccl_backend() -> str:
    """torch.distributed's backend for the device: ``nccl`` or ``gloo``."""
    return "nccl" if is_cuda_available else "gloo"


def get_resource_name() -> str:
    """Ray's name of the resource: ``GPU`` or ``CPU``."""
    return "GPU" if is_cuda_available else "CPU"


def get_visible_devices_keyword() -> str:
    """The environment variable that names the visible GPUs."""
    return "CUDA_VISIBLE_DEVICES"


def get_vendor() -> str:
    """Who made the GPU: ``nvidia``, ``amd``, or ``cpu`` where there is none."""
    if not is_cuda_available:
        return "cpu"
    return "nvidia" if torch.version.hip is None else "amd"


def auto_set_device(config: DictConfig) -> None:
    """Set ``trainer.device`` to ``cuda`` where there is a GPU and the config names something else."""
    trainer: Any = getattr(config, "trainer", None)
    wanted = getattr(trainer, "device", None)
    if is_cuda_available and wanted not in (None, "auto", "cuda"):
        logger.warning("trainer.device is %s, and there is a GPU: it is set to cuda", wanted)
        trainer.device = "cuda"


def set_expandable_segments(enable: bool) -> None:
    """Turn expandable segments of CUDA's allocator on or off; nothing on a CPU."""
    if is_cuda_available:
        torch.cuda.memory._set_allocator_settings(f"expandable_segments:{enable}")


def manual_seed(seed: int) -> None:
    """Seed the current GPU, or the CPU."""
    torch.cuda.manual_seed(seed) if is_cuda_available else torch.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed all GPUs, or the CPU."""
    torch.cuda.manual_seed_all(seed) if is_cuda_available else torch.manual_seed(seed)


def is_support_ipc() -> bool:
    """Whether processes can share tensors on the device."""
    return is_cuda_available and os.name == "posix"
