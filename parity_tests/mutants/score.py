"""Plant each fault, ask every question, and note what was found where."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from parity_tests import golden
from parity_tests.capture import Capture
from parity_tests.compare import compare
from parity_tests.isolated import Bench, Feed, feed_of
from parity_tests.isolated.bench import SIDES
from parity_tests.isolated.runs import SideRun, run_side
from parity_tests.isolated.standing import call_in
from parity_tests.mutants.mutant import Mutant, plant_in, restore, restore_in
from parity_tests.mutants.settings import STEPS, setting_config
from parity_tests.run import capture_run, finish_capture, for_parity
from parity_tests.third_opinion import against_reference
from parity_tests.verdict import Verdict
from runtime.errors import CaptureError

QUESTIONS = ("isolated", "chained", "golden", "reference")

REFUSED = "refused"
"""The field of a fault that made a stage fail: the product itself has found it."""


@dataclass(frozen=True)
class Place:
    """Where a question saw the first difference."""

    stage: str
    field: str

    def __str__(self) -> str:
        return f"{self.stage} {self.field}"


@dataclass(frozen=True)
class Score:
    """What each question made of a mutant: a place, None where nothing was found; a question not asked is not there."""

    mutant: Mutant
    places: Mapping[str, Place | None]

    def right(self, question: str) -> bool:
        """Whether ``question`` found the fault at its own stage and field."""
        place = self.places.get(question)
        return place is not None and place.stage == self.mutant.stage and place.field in self.mutant.fields

    @property
    def found(self) -> bool:
        """Whether a question that must find it did: the two trainers compared, or what is independent of both."""
        asked = ("golden", "reference") if self.mutant.trainer == "shared" else ("isolated", "chained")
        return any(self.right(question) for question in asked)


@dataclass(frozen=True, eq=False)
class Clean:
    """A setting without a fault: its config, both trainers' runs, their baseline, and their stages fed alike."""

    config: DictConfig
    runs: Mapping[str, Capture]
    baseline: golden.Baseline
    feed: Feed
    fed: Mapping[str, SideRun]

    @cached_property
    def covered(self) -> bool:
        """Whether the reference computes such a step; it then agrees with both, or the setting is of no use."""
        try:
            verdicts = [against_reference(run) for run in self.runs.values()]
        except CaptureError:
            return False
        if wrong := [verdict.line for verdict in verdicts if verdict.first]:
            raise CaptureError(f"a run without a fault is not what the reference computes: {wrong[0]}")
        return True


class Prover:
    """Scores mutants one by one on standing trainers; what a setting gives without a fault is computed once."""

    def __init__(self, bench: Bench, folder: Path, ranks: int = 2) -> None:
        self.bench, self.folder, self.ranks = bench, folder, ranks
        self._clean: dict[str, Clean] = {}
        self._count = 0

    def clean(self, setting: str) -> Clean:
        """The setting without a fault. Raises CaptureError where the trainers disagree already."""
        if setting not in self._clean:
            folder = self.folder / setting
            config = setting_config(setting, folder, self.ranks)
            made = self._runs(config, setting, folder / "run", tuple(SIDES))
            runs = {side: run.capture for side, run in made.items()}
            verdict = compare(runs["legacy"], runs["v1"], by_position=False)
            if verdict.exit_code:
                raise CaptureError(f"setting {setting!r} is of no use for mutants: {verdict.line}")
            baseline = golden.record([*runs.values()], folder / "baseline")
            feed = feed_of(runs["legacy"], STEPS[setting])
            fed = self._fed(config, feed, folder / "fed", tuple(SIDES))
            self._clean[setting] = Clean(config, runs, baseline, feed, fed)
        return self._clean[setting]

    def score(self, mutant: Mutant) -> Score:
        """Plant ``mutant`` on its side or on both, run, take it out, and ask every question that has an answer.

        The captures of one that was not found stay in the prover's folder.
        """
        clean = self.clean(mutant.setting)
        self._count += 1
        folder = self.folder / f"mutant-{self._count}"
        sides = tuple(SIDES) if mutant.trainer == "shared" else (mutant.trainer,)
        with planted(mutant, self.bench, self.ranks):
            runs = self._runs(clean.config, mutant.setting, folder / "run", sides)
            fed = self._fed(clean.config, clean.feed, folder / "fed", sides)
        score = Score(mutant, dict(_answers(mutant, clean, runs, fed)))
        if score.found:
            shutil.rmtree(folder)
        return score

    def _runs(self, config: DictConfig, setting: str, folder: Path, sides: tuple[str, ...]) -> dict[str, SideRun]:
        def run(side: str) -> SideRun:
            own = for_parity(config, side, STEPS[setting], folder / side)
            try:
                return SideRun(capture_run(self.bench.player(side), own, folder / side), {})
            except Exception as error:  # a fault may end in any of them, and each is an answer
                return SideRun(finish_capture(own, folder / side), {"run": f"{type(error).__name__}: {error}"})

        return _at_once(run, sides)

    def _fed(self, config: DictConfig, feed: Feed, folder: Path, sides: tuple[str, ...]) -> dict[str, SideRun]:
        return _at_once(lambda side: run_side(self.bench, side, config, feed, folder / side), sides)


@contextmanager
def planted(mutant: Mutant, bench: Bench, ranks: int) -> Iterator[None]:
    """``mutant`` in every process that its tag means, for as long as the block lasts."""
    sides = tuple(SIDES) if mutant.trainer == "shared" else (mutant.trainer,)
    actors = [actor for side in sides for actor in bench.standing(side, ranks).processes()]
    # The driver belongs to both. V1 computes nothing there, and legacy does: what is not V1's own is legacy's.
    here = mutant.trainer != "v1" or mutant.module.startswith("v1.")
    try:
        call_in(actors, plant_in, mutant)
        if here:
            mutant.plant()
        yield
    finally:
        restore(mutant.target)
        call_in(actors, restore_in, mutant.target)


def _answers(
    mutant: Mutant, clean: Clean, runs: Mapping[str, SideRun], fed: Mapping[str, SideRun]
) -> Iterator[tuple[str, Place | None]]:
    if mutant.stage != "rollout":
        yield "isolated", _place(_parity({**clean.fed, **fed}), failed=any(run.refusals for run in fed.values()))
    failed = any(run.refusals for run in runs.values())
    unchanged = {side: SideRun(run, {}) for side, run in clean.runs.items()}
    yield "chained", _place(_parity({**unchanged, **runs}), failed)
    changed = list(runs.values())[-1]
    yield "golden", _place(golden.check(clean.baseline, changed.capture), failed)
    if clean.covered and not failed:
        yield "reference", _place(against_reference(changed.capture))


def _parity(sides: Mapping[str, SideRun]) -> Verdict:
    return compare(sides["legacy"].capture, sides["v1"].capture, by_position=False)


def _place(verdict: Verdict, failed: bool = False) -> Place | None:
    first = verdict.first
    if first is None:
        return None
    # Where a run ends early, the first stage that it lacks is the one that failed.
    return Place(first.stage, REFUSED if failed and first.field == "record" else first.field)


def _at_once(work: Any, sides: tuple[str, ...]) -> dict[str, Any]:
    """``work(side)`` of every side, the last one in this thread: TransferQueue's client belongs to it."""
    with ThreadPoolExecutor(1) as pool:
        waiting = {side: pool.submit(work, side) for side in sides if side == "legacy"}
        done = {side: work(side) for side in sides if side != "legacy"}
        return {**{side: future.result() for side, future in waiting.items()}, **done}
