"""What a trainer tells an observer after each stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from runtime.trajectories import TrajectoryBatch

INITIAL_STAGE = "initial"
"""The record made at step 0, before any training: it carries the digests of the weights and nothing else."""


@dataclass(frozen=True, eq=False)
class StageRecord:
    """What one stage of one step wrote.

    step: 1, 2, ...; 0 for ``INITIAL_STAGE``. stage: a name of ``runtime.fields.STAGE_NAMES``.
    batch: only the columns that this stage wrote, packed, rows in canonical order (position of the prompt in its
    batch, session, index); None for a stage that writes no column.
    series: floats by metric name, one a mini-batch in the order of the updates (``actor/pg_loss``, ``actor/grad_norm``)
    or a single one of the whole stage (``kl``). No times: whatever is here is compared bit by bit.
    digests: ``runtime.digests.tensor_digest`` of each weight after the stage, by its name prefixed ``actor.`` or
    ``critic.``.
    """

    step: int
    stage: str
    batch: TrajectoryBatch | None = None
    series: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)


class StageHook(Protocol):
    """Called once a stage. It must be picklable: V1 runs it in a Ray worker, near the data."""

    def __call__(self, record: StageRecord) -> None: ...
