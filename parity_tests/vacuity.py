"""Reasons why two runs that agree prove nothing: there was nothing that could have gone wrong."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from parity_tests.capture import Capture, StageCapture
from runtime.trainer.hooks import INITIAL_STAGE
from runtime.trainer.stages import configured_stages, updates_actor


def vacuous_reasons(*captures: Capture) -> tuple[str, ...]:
    """Every reason that holds for any of ``captures``, each told once with what was counted.

    A recorder's capture is not asked for stages and weights that its user did not hand it.
    """
    reasons: dict[str, None] = {}
    folders = {capture.directory.resolve() for capture in captures}
    if len(folders) < len(captures):
        reasons[f"both sides are the same capture, {folders.pop()}"] = None
    for capture in captures:
        of_whole_runs = () if capture.partial else (_stages_not_run, _weights_unchanged)
        for check in (*of_whole_runs, _zero_advantages, _groups_without_spread):
            reasons.update(dict.fromkeys(check(capture)))
    return tuple(reasons)


def _stages_not_run(capture: Capture) -> Iterator[str]:
    if INITIAL_STAGE not in capture.index.get(0, ()):
        yield f"there is no record {INITIAL_STAGE!r} of the weights before training"
    config = OmegaConf.create(dict(capture.config))
    try:
        steps = config.trainer.total_training_steps or max(capture.index, default=0)
        names = configured_stages(config)
        updating = {step for step in range(1, steps + 1) if updates_actor(config, step)}
    except (OmegaConfBaseException, AttributeError, TypeError) as error:
        # Of another program, or made by hand: what differs is told all the same.
        reason = str(error).splitlines()[0]
        yield f"{capture.directory}: its config does not say which stages should have run ({reason})"
        return
    if not steps:
        yield "no step was run"
    for step in range(1, steps + 1):
        for name in names:
            left_out = name == "update_actor" and step not in updating
            if not left_out and name not in capture.index.get(step, ()):
                yield f"stage {name} of step {step} is configured and did not run"


def _zero_advantages(capture: Capture) -> Iterator[str]:
    columns = list(_columns(capture, "advantage", "advantages"))
    if columns and not any(bool(piece.any()) for stage in columns for piece in stage.pieces("advantages")):
        yield "all advantages are zero"


def _groups_without_spread(capture: Capture) -> Iterator[str]:
    """Groups of one have nothing to spread over; they are not counted."""
    counted = spread = 0
    for stage in _columns(capture, "reward", "token_level_scores"):
        scores = stage.row_sums("token_level_scores")
        groups: dict[str, list[float]] = {}
        for key, score in zip(stage.keys, scores.tolist(), strict=True):
            groups.setdefault(key.uid, []).append(score)
        several = [members for members in groups.values() if len(members) > 1]
        counted += len(several)
        spread += sum(len(set(members)) > 1 for members in several)
    if 2 * spread < counted:
        yield f"only {spread} of {counted} groups have different rewards, fewer than half"


def _weights_unchanged(capture: Capture) -> Iterator[str]:
    """Each model that was to be trained must end with at least one weight that differs from its first."""
    if INITIAL_STAGE not in capture.index.get(0, ()):
        return
    before = capture.stage(0, INITIAL_STAGE).digests
    for stage, prefix in (("update_actor", "actor."), ("update_critic", "critic.")):
        steps = [step for step, names in capture.index.items() if stage in names]
        if not steps:
            continue
        after = capture.stage(steps[-1], stage).digests
        names = [name for name in after if name.startswith(prefix)]
        if all(after[name] == before.get(name) for name in names):
            yield f"the {prefix.rstrip('.')} has no weight that changed between the start and step {steps[-1]}"


def _columns(capture: Capture, stage: str, column: str) -> Iterator[StageCapture]:
    for step, names in capture.index.items():
        if stage in names:
            found = capture.stage(step, stage)
            if column in found.columns and found.columns[column].stored:
                yield found
