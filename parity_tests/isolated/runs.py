"""Run single stages of both trainers on one feed, and compare what they wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from parity_tests.capture import Capture, CaptureHook
from parity_tests.compare import compare
from parity_tests.isolated.bench import Bench
from parity_tests.isolated.feed import Feed, rows_of
from parity_tests.isolated.standing import Standing
from parity_tests.run import finish_capture, for_parity
from parity_tests.verdict import Verdict
from runtime import containers
from runtime.errors import VerliftError
from shared_algos.errors import AlgorithmError


@dataclass(frozen=True)
class SideRun:
    """What one trainer made of a feed: a capture of its stages, and what it refused, by stage."""

    capture: Capture
    refusals: Mapping[str, str]


@dataclass(frozen=True)
class Isolated:
    """Both trainers on one feed."""

    sides: Mapping[str, SideRun]
    verdict: Verdict

    @property
    def refusals(self) -> Mapping[str, Mapping[str, str]]:
        """The messages by stage and side."""
        stages = dict.fromkeys(stage for run in self.sides.values() for stage in run.refusals)
        return {
            stage: {side: run.refusals[stage] for side, run in self.sides.items() if stage in run.refusals}
            for stage in stages
        }

    @property
    def alarm(self) -> str | None:
        """Why the two do not agree: the first divergence, or a refusal that only one of them made; None if they do."""
        for stage, messages in self.refusals.items():
            if len(set(messages.values())) != 1 or len(messages) != len(self.sides):
                return f"stage {stage} is refused differently: {dict(messages)}"
        return self.verdict.describe(self.verdict.first) if self.verdict.first else None


def isolated(
    bench: Bench, config: DictConfig, feed: Feed, directory: Path, stages: Sequence[str] | None = None
) -> Isolated:
    """Feed each stage of both trainers what ``feed`` holds before it, and compare what they write bit by bit.

    stages: all that the config asks for, but for rollout, by default. Both start from the same weights; only the
    updates go on from what an update before them left. Captures are written below ``directory``.
    """
    # Zero or more refusals are part of the answer; whatever else is raised is raised.
    with ThreadPoolExecutor(1) as other:
        legacy = other.submit(run_side, bench, "legacy", config, feed, directory / "legacy", stages)
        v1 = run_side(bench, "v1", config, feed, directory / "v1", stages)
        sides = {"legacy": legacy.result(), "v1": v1}
    return Isolated(sides, compare(sides["legacy"].capture, sides["v1"].capture, by_position=False))


def run_side(
    bench: Bench, side: str, config: DictConfig, feed: Feed, directory: Path, stages: Sequence[str] | None = None
) -> SideRun:
    """One trainer on ``feed``; see ``isolated``."""
    own = for_parity(config, side, 1, directory)
    trainer = bench.trainer(side, own, [CaptureHook(directory)])
    refusals: dict[str, str] = {}
    for stage in stages or trainer.stage_names[1:]:
        try:
            run_stage(trainer, feed, stage)
        except (VerliftError, AlgorithmError) as error:
            refusals[stage] = refusal(error)
    return SideRun(finish_capture(own, directory), refusals)


def run_stage(trainer: Standing, feed: Feed, stage: str) -> None:
    """Run ``stage`` on what ``feed`` holds before it; the trainer's hooks see what it writes."""
    canonical, order = feed.before(stage), feed.row_order(stage)
    trainer.global_steps = feed.step
    trainer.place(canonical.keys)
    fed = trainer.put(canonical)
    try:
        batch = fed if list(order) == list(range(len(fed))) else containers.select_rows(fed, rows_of(order))
        after, series = getattr(trainer, stage)(batch)
        trainer.tell_hooks(stage, batch, after, series)
    finally:
        trainer.drop(fed)


def refusal(error: Exception) -> str:
    """``Type: message``, the same for an error that was raised here and one that came out of an actor."""
    cause = getattr(error, "cause", error)
    return f"{type(cause).__name__}: {cause}"
