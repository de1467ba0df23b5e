"""Checkpoints of a run, in the folders and under the names of verl: ``global_step_N/{actor,critic,trainer.pt}``."""

from __future__ import annotations

import codecs
import io
import os
import pickle
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy._core import multiarray
from omegaconf import DictConfig

from runtime.errors import CheckpointError
from runtime.workers.group import WorkerGroup

LATEST = "latest_checkpointed_iteration.txt"
"""The file that holds the number of the newest step whose checkpoint is whole."""

_STEP = "global_step_"
_TRAINER = "trainer.pt"
_KEEP = {"actor": "max_actor_ckpt_to_keep", "critic": "max_critic_ckpt_to_keep"}


class Checkpoints:
    """The checkpoints below ``trainer.default_local_dir``.

    Folders are absolute, since ranks may stand in another working directory; on several nodes it is a shared one.
    """

    def __init__(self, config: DictConfig) -> None:
        self._settings = config.trainer
        self.root = Path(config.trainer.default_local_dir).absolute()

    def save(self, step: int, groups: Mapping[str, WorkerGroup], state: Mapping[str, Any]) -> Path:
        """Write every rank of ``groups`` (by ``actor``, ``critic``) and the trainer's ``state``, then the step's name.

        A run that ends in between leaves the checkpoint before it as the newest one. state: numbers, text, tensors,
        numpy arrays and containers of them. Raises ``CheckpointError`` for anything else, before anything is written.
        """
        packed = _packed(state)
        folder = self.root / f"{_STEP}{step}"
        for role, group in groups.items():
            group.call_all("save_checkpoint", str(folder / role))
        _write(folder / _TRAINER, lambda file: file.write_bytes(packed))
        _write(self.root / LATEST, lambda file: file.write_text(str(step)))
        for role in groups:
            self._drop_old(role, step)
        return folder

    def load(self, groups: Mapping[str, WorkerGroup]) -> tuple[int, Mapping[str, Any]]:
        """Go on from the checkpoint that ``resume_mode`` means: its step and the trainer's state; 0 and {} without one.

        Raises ``CheckpointError`` naming what is not there.
        """
        folder = self._to_resume()
        if folder is None:
            return 0, {}
        for role, group in groups.items():
            group.call_all("load_checkpoint", str(folder / role))
        state = _unpacked((folder / _TRAINER).read_bytes(), folder / _TRAINER)
        if self._settings.del_local_ckpt_after_load:
            shutil.rmtree(folder)
        return step_of(folder), state

    def _to_resume(self) -> Path | None:
        mode = self._settings.resume_mode
        if mode == "disable":
            return None
        if mode == "resume_path":
            folder = Path(self._settings.resume_from_path or "").absolute()
            if not (folder / _TRAINER).is_file():
                raise CheckpointError(f"trainer.resume_from_path={folder} holds no {_TRAINER}; give a folder {_STEP}N")
            return folder
        found = find_latest_ckpt_path(self.root)
        return None if found is None else Path(found)

    def _drop_old(self, role: str, step: int) -> None:
        """Delete the oldest checkpoints of a role beyond ``max_{role}_ckpt_to_keep``; never that of ``step``."""
        keep = self._settings[_KEEP[role]]
        if not keep:
            return
        # Folders with other names below the root are somebody else's.
        ours = (folder for folder in self.root.glob(f"{_STEP}*/{role}") if _is_step(folder.parent))
        older = sorted((folder for folder in ours if step_of(folder.parent) < step), key=_age)
        for folder in older[: max(0, len(older) - (keep - 1))]:
            shutil.rmtree(folder)
            if not any((folder.parent / other).exists() for other in _KEEP):
                shutil.rmtree(folder.parent)


def step_of(folder: Path) -> int:
    """The step of a checkpoint's folder. ``CheckpointError`` for a name of another form."""
    if not _is_step(folder):
        raise CheckpointError(f"{folder} is no checkpoint: its name would be {_STEP}N")
    return int(folder.name.removeprefix(_STEP))


def _is_step(folder: Path) -> bool:
    return folder.name.startswith(_STEP) and folder.name.removeprefix(_STEP).isdecimal()


def find_latest_ckpt_path(path: str | os.PathLike[str] | None, directory_format: str = _STEP + "{}") -> str | None:
    """The folder of the newest whole checkpoint below ``path``, ``None`` without one (``verl.utils.checkpoint``).

    Raises ``CheckpointError`` where the newest one is named but gone: verl would start from 0 without a word.
    """
    if path is None or not (Path(path) / LATEST).is_file():
        return None
    folder = Path(path) / directory_format.format((Path(path) / LATEST).read_text().strip())
    if not folder.is_dir():
        raise CheckpointError(
            f"{Path(path) / LATEST} names {folder.name}, which is not there (trainer.del_local_ckpt_after_load deletes "
            "what was loaded). Put it back, write an earlier step into the file, or delete the file to start anew"
        )
    return str(folder)


_NUMPY: list[Any] = [
    multiarray._reconstruct,
    multiarray.scalar,
    np.ndarray,
    np.dtype,
    *{type(np.dtype(code)) for code in np.typecodes["All"] if code != "O"},
    # Old-style random states hold bytes, which pickle spells as text.
    codecs.encode,
]
"""What numpy's numbers and arrays are rebuilt with; none of it runs code that a file brings."""


def _packed(state: Mapping[str, Any]) -> bytes:
    """``state`` as ``torch.save`` writes it, once it is known to be read again."""
    for name, value in state.items():
        file = io.BytesIO()
        try:
            torch.save({name: value}, file)
            _unpacked(file.getvalue(), name)
        except (CheckpointError, AttributeError, TypeError, pickle.PicklingError) as error:
            raise CheckpointError(
                f"the state {name!r} cannot be saved so that reading it runs no code ({error}); the state_dict of a "
                "sampler or a data set may hold numbers, text, tensors, numpy arrays and containers of them"
            ) from error
    file = io.BytesIO()
    torch.save(dict(state), file)
    return file.getvalue()


def _unpacked(data: bytes, what: object) -> Mapping[str, Any]:
    """Numbers, text, tensors, arrays and containers only: reading a checkpoint runs no code."""
    try:
        with torch.serialization.safe_globals(_NUMPY):
            return torch.load(io.BytesIO(data), weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = re.search(r"Unsupported \S+ \S+|GLOBAL \S+", str(error))
        told = f"it holds {reason[0].split()[-1]}" if reason else str(error).splitlines()[0]
        raise CheckpointError(f"{what} cannot be read: {told}") from error


def _age(folder: Path) -> int:
    return step_of(folder.parent)


def _write(target: Path, write: Any) -> None:
    """Beside, then renamed: a reader never sees half a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f"{target.name}.writing")
    write(beside)
    beside.rename(target)
