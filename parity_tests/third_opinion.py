"""Set a capture against the reference step: how far each field is off, and the first one that is too far."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from parity_tests.capture import Capture, StageCapture
from parity_tests.difference import shown
from parity_tests.histogram import histogram
from parity_tests.reference import reference_step
from parity_tests.reference_settings import settings_of, value_at
from parity_tests.vacuity import vacuous_reasons
from parity_tests.verdict import FieldVerdict, Kind, Status, Verdict
from parity_tests.weights import WEIGHTS_STAGE, read_weights
from runtime.fs import local_model

STEP = 1
"""The reference starts from the model's folder, so the first step is what it can speak of."""

TOLERANCE = 1e-5
"""Float32 results of one step that add the same numbers in another order differ by less."""

_COLUMNS = {
    "old_log_prob": ("old_log_probs", "entropy"),
    "values": ("values",),
    "advantage": ("advantages", "returns"),
}
_SERIES = {
    "update_critic": ("critic/loss", "critic/grad_norm"),
    "update_actor": ("actor/loss", "actor/grad_norm"),
}
_NO_WEIGHTS = "weights are not compared: the capture has none of step 1 alone (verlift parity run --steps 1 makes one)"


def against_reference(
    capture: Capture,
    folder: str | None = None,
    settings: Mapping[str, Any] | None = None,
    tolerance: float = TOLERANCE,
) -> Verdict:
    """Compute the first step of ``capture`` plainly and compare what the trainer recorded of it.

    folder: the model before training; by default the one that the capture's config names. settings: by default
    ``settings_of`` its config. tolerance: the largest absolute difference that passes, in every field. Weights are
    compared when the run exported them after this step and made no other; a note says so when not.

    Raises CaptureError naming the key when the config asks for what the reference does not compute.
    """
    settings = settings_of(capture.config) if settings is None else settings
    folder = folder or local_model(value_at(capture.config, "actor_rollout_ref.model.path"))
    results = reference_step(capture, folder, dict(settings), STEP)
    fields = list(_compare_stages(capture, results, tolerance))
    with_weights = capture.weights is not None and max(capture.index) == STEP
    if with_weights:
        fields += _compare_weights(capture, results, tolerance)
    return Verdict(
        labels=("reference", capture.trainer),
        fields=tuple(fields),
        vacuous=vacuous_reasons(capture),
        notes=() if with_weights else (_NO_WEIGHTS,),
    )


def _compare_stages(capture: Capture, results: Mapping[str, Tensor], tolerance: float) -> Iterator[FieldVerdict]:
    for name in capture.index[STEP]:
        stage = capture.stage(STEP, name)
        for column in _COLUMNS.get(name, ()):
            yield _compare_column(stage, column, results[column], tolerance)
        for series in _SERIES.get(name, ()):
            found = torch.tensor(stage.series[series], dtype=torch.float64)
            verdict, place = _compare(name, series, Kind.SERIES, results[series], found, tolerance)
            yield replace(verdict, key=f"mini-batch:{place}")


def _compare_column(stage: StageCapture, name: str, ours: Tensor, tolerance: float) -> FieldVerdict:
    verdict, place = _compare(stage.stage, name, Kind.COLUMN, ours, stage.read(name), tolerance)
    rows = stage.responses
    return replace(verdict, key=str(stage.keys[int(rows.rows[place])]), token=int(rows.positions[place]))


def _compare_weights(capture: Capture, results: Mapping[str, Tensor], tolerance: float) -> Iterator[FieldVerdict]:
    for name, theirs in read_weights(capture):
        yield _compare(WEIGHTS_STAGE, name, Kind.WEIGHTS, results[name].flatten(), theirs.flatten(), tolerance)[0]


def _compare(
    stage: str, name: str, kind: Kind, ours: Tensor, theirs: Tensor, tolerance: float
) -> tuple[FieldVerdict, int]:
    """The verdict on ``[N]`` values, and the place it tells of: the first beyond ``tolerance``, else the furthest."""
    if ours.shape != theirs.shape:
        sides = [f"{len(side)} values" for side in (ours, theirs)]
        return FieldVerdict(STEP, stage, name, kind, Status.DIVERGED).at(left=sides[0], right=sides[1]), 0
    gaps = (ours.double() - theirs.double()).abs().nan_to_num(nan=math.inf)
    beyond = (gaps > tolerance).nonzero()
    place = int(beyond[0] if len(beyond) else gaps.argmax())
    status = Status.DIVERGED if len(beyond) else Status.WITHIN
    verdict = FieldVerdict(STEP, stage, name, kind, status, float(gaps.max()), float(gaps.mean()))
    verdict = replace(verdict, size=len(gaps), histogram=histogram(gaps[gaps > 0]))
    return verdict.at(left=shown(ours[place].float()), right=shown(theirs[place].float())), place
