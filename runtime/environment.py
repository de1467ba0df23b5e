"""Environment variables that must stand before a process that computes starts."""

from __future__ import annotations

import os

WORKER_ENV = {
    # Fixes MKL's kernel choice, so that a row of a matmul does not depend on how many rows there are.
    "MKL_CBWR": "AVX2",
    # The same for cuBLAS, whose results otherwise depend on what ran before.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Idle OpenMP threads sleep: spinning ones made decoding beside other processes up to a hundred times slower.
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    # TransferQueue's own default of 200 s turns a dead storage unit into a wait of ten minutes.
    "TQ_SIMPLE_STORAGE_SEND_RECV_TIMEOUT": "20",
    # It warns at every call on a machine with fewer than eight cores.
    "TQ_LOGGING_LEVEL": "ERROR",
    # Warnings that libraries print about themselves in every process: tensordict's of torch.fx, torchdata's of torch.
    "TORCH_LOGS": "-torch.fx",
    "PYTHONWARNINGS": "ignore:'set_vital' is deprecated:UserWarning",
    # Bars of single-second loads, one a process, drown what a run has to say.
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    # Ray leaves a CPU actor's view of the GPUs alone, instead of warning that it will.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def set_worker_env() -> None:
    """Set what is not set yet. Call it before torch or TransferQueue is imported: both read theirs once."""
    for name, value in WORKER_ENV.items():
        os.environ.setdefault(name, value)
