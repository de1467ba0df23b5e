"""``verl.utils.checkpoint.checkpoint_manager``: which checkpoint is the last, and whether time runs out."""

from __future__ import annotations

import os
import time
from pathlib import Path

from runtime.errors import DataError

TRACKER = "latest_checkpointed_iteration.txt"

EXPIRY_VARIABLES = (
    "MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
    "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
)
"""Where Volcano Engine and AWS say, in seconds since 1970, when a machine is taken back."""


def get_checkpoint_tracker_filename(root_path: str) -> str:
    """The file that holds the step of the last checkpoint."""
    return os.path.join(root_path, TRACKER)


def find_latest_ckpt_path(path: str | None, directory_format: str = "global_step_{}") -> str | None:
    """The folder of the last checkpoint below ``path``, or None where there is none.

    Raises ``DataError`` where the tracker file holds no step.
    """
    tracker = Path(path, TRACKER) if path is not None else None
    if path is None or tracker is None or not tracker.exists():
        return None
    text = tracker.read_text().strip()
    if not text.isdecimal():
        raise DataError(f"{tracker} holds {text!r}, not the step of a checkpoint; write the step there, or delete it")
    folder = Path(path, directory_format.format(int(text)))
    return str(folder) if folder.exists() else None


def should_save_ckpt_esi(max_steps_duration: float, save_ckpt_duration: float = 60, redundant_time: float = 0) -> bool:
    """Whether the machine is taken back before another step and a checkpoint could be done; all in seconds."""
    stamp = next((os.environ[name] for name in EXPIRY_VARIABLES if os.environ.get(name)), None)
    if stamp is None or max_steps_duration <= 0:
        return False
    try:
        remaining = float(stamp) - time.time()
    except ValueError:
        raise DataError(f"the machine's expiry {stamp!r} is not in seconds since 1970: unset or mend it") from None
    return 0 < remaining <= max_steps_duration + save_ckpt_duration + redundant_time
