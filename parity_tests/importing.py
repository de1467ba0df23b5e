"""Make a capture of ``DataProto`` files that were saved elsewhere, one a stage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from compat.protocol import DataProto
from parity_tests.capture import Capture
from parity_tests.recorder.verl_recorder import Recorder
from runtime.errors import CaptureError


class SavedStage(NamedTuple):
    """A file that ``DataProto.save_to_disk`` wrote after a stage."""

    file: Path
    stage: str
    step: int


def import_stages(saved: Sequence[SavedStage], directory: Path) -> Capture:
    """Write the stages ``saved``, in the order in which they were saved, as a capture in ``directory``.

    Pickles of old versions of verl are read without running anything in them. Rows of one uid are sessions 0, 1, ...
    in the order of the file, in every file: save them before rows are balanced, or keep ``recorder_key`` in
    ``non_tensor_batch``.

    Raises CaptureError when ``directory`` is not new, or naming a file that is missing, damaged or no batch of
    trajectories; ``PickleRefusedError`` for one that would run code.
    """
    if directory.exists():
        raise CaptureError(f"{directory} is there already; give a new directory for the capture, or remove it")
    batches = [(each, _read(each.file)) for each in saved]
    recorder = Recorder(directory)
    for (file, stage, step), batch in batches:
        try:
            recorder.stage(step, stage, batch)
        except (FileExistsError, TypeError, ValueError) as error:
            raise CaptureError(f"{file}: {error}") from error
        except OSError as error:
            raise CaptureError(f"could not write {directory}: {error}") from error
    recorder.close(config={"trainer": {"use_v1": False}})
    return Capture.open(directory)


def _read(file: Path) -> DataProto:
    try:
        batch = DataProto.load_from_disk(file)
    except OSError as error:
        raise CaptureError(f"{file} cannot be read ({error})") from error
    there = {*(() if batch.batch is None else batch.batch.keys()), *batch.non_tensor_batch}
    lacking = sorted({"attention_mask", "responses", "uid"} - there)
    if lacking:
        raise CaptureError(
            f"{file} has no {', '.join(lacking)}: it is no batch of trajectories; save the batch after the rollout"
        )
    return batch
