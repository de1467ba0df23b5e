"""``verl.utils.memory_utils``: GPU memory given back."""

from __future__ import annotations

import gc

from compat.utils.device import get_torch_device, is_cuda_available


def aggressive_empty_cache(force_sync: bool = True, max_retries: int = 3) -> None:
    """Collect garbage and give cached GPU memory back, again while more than a GiB comes back."""
    gc.collect()
    if not is_cuda_available:
        return
    device = get_torch_device()
    for _ in range(max_retries):
        before = device.memory_reserved()
        device.empty_cache()
        if force_sync:
            device.synchronize()
        if before - device.memory_reserved() < 2**30:
            return
        gc.collect()


def reset_memory_stats() -> None:
    """Start the GPU's peak memory anew."""
    if is_cuda_available:
        get_torch_device().reset_peak_memory_stats()
