"""What a stage is fed: the columns that the stages before it wrote, from a capture or made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from parity_tests.capture import Capture, StageCapture
from runtime.arrays import object_array
from runtime.errors import CaptureError
from runtime.fields import REARRANGING, STAGE_NAMES
from runtime.trajectories import TrajectoryBatch


@dataclass(frozen=True, eq=False)
class Feed:
    """One step as its stages wrote it.

    written: what each stage wrote, by its name; B rows of the same trajectories in canonical order everywhere.
    row_orders: the rows at each place behind a stage that rearranges, ``[B']``, by its name.
    """

    written: Mapping[str, TrajectoryBatch]
    row_orders: Mapping[str, Sequence[int]] = field(default_factory=dict)
    step: int = 1

    def before(self, stage: str) -> TrajectoryBatch:
        """Every column and object that the stages before ``stage`` wrote, the newest of a name; in canonical order."""
        batch = self.written["rollout"]
        for name in _stages_before(stage):
            if name in self.written:
                later = self.written[name]
                objects = {**batch.objects, **later.objects}
                batch = replace(batch, columns={**batch.columns, **later.columns}, objects=objects)
        return batch

    def row_order(self, stage: str) -> Sequence[int]:
        """The rows in which ``stage`` finds the batch: as the last stage before it that rearranges left them."""
        orders = [self.row_orders[name] for name in _stages_before(stage) if name in self.row_orders]
        return orders[-1] if orders else range(len(self.written["rollout"]))

    def with_columns(self, **columns: torch.Tensor) -> Feed:
        """With ``columns`` in the place of those that each stage wrote."""
        changed = {
            stage: batch.with_columns({name: column for name, column in columns.items() if name in batch})
            for stage, batch in self.written.items()
        }
        return replace(self, written=changed)


def feed_of(capture: Capture, step: int = 1) -> Feed:
    """The step ``step`` of a capture; CaptureError when it has no rollout."""
    names = capture.index.get(step, ())
    if "rollout" not in names:
        raise CaptureError(f"{capture.directory} has no stage rollout of step {step}; it has {dict(capture.index)}")
    stages = {name: capture.stage(step, name) for name in names}
    return Feed(
        written={name: _as_batch(stage) for name, stage in stages.items() if stage.keys},
        row_orders={
            name: [int(row) for row in stages[name].series["row_order"]] for name in names if name in REARRANGING
        },
        step=step,
    )


def _as_batch(stage: StageCapture) -> TrajectoryBatch:
    return TrajectoryBatch(
        keys=stage.keys,
        prompts=stage.prompts,
        responses=stage.responses,
        columns={name: stage.read(name) for name in stage.columns},
        objects={name: _objects(values) for name, values in stage.objects.items()},
    )


def _objects(values: Sequence[object]) -> np.ndarray:
    return object_array(list(values))


def _stages_before(stage: str) -> Sequence[str]:
    return STAGE_NAMES[: STAGE_NAMES.index(stage)]


def rows_of(order: Sequence[int]) -> torch.Tensor:
    """Row numbers as int64 ``[B]``."""
    return torch.tensor(list(order), dtype=torch.int64)
