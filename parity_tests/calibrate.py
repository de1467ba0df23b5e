"""Measure how far the model stages of one run spread under changes that should change bits and no meaning."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from parity_tests.capture import Capture
from parity_tests.compare import compare
from parity_tests.golden import Baseline
from parity_tests.tolerances import TABLE, exact_advantages
from parity_tests.verdict import EXACT, FieldVerdict, Kind, Tolerance
from runtime.errors import CaptureError
from runtime.workers.model_workers import torch_threads

SAFETY = 4.0
"""A proposed tolerance is this many times the largest spread seen: a few runs do not see the widest one."""
_ACTOR = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
_KEEP_ALL = 1 << 40
_LOG_LINES = 5


@dataclass(frozen=True)
class Perturbation:
    """One way to make the same run: environment variables and overrides that no result should depend on."""

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()


def perturbations(config: DictConfig) -> Iterator[Perturbation]:
    """Other kernels, another number of threads, and smaller micro-batches where the config has a size to halve."""
    yield Perturbation("kernels for any CPU", {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"})
    yield Perturbation("kernels of MKL's choice", {"MKL_CBWR": "AUTO"})
    threads = torch_threads(config)
    yield Perturbation("threads", overrides=(f"runtime.torch_threads={threads // 2 or 2}",))
    size = OmegaConf.select(config, _ACTOR)
    if size and size % 2 == 0:
        yield Perturbation("micro-batches", overrides=(f"{_ACTOR}={size // 2}",))


@dataclass(frozen=True)
class Spread:
    """The widest difference seen at one place of the table, and what it was seen between."""

    max_abs: float = 0.0
    mean_abs: float = 0.0
    widest: str = ""

    def with_seen(self, found: FieldVerdict, name: str) -> Spread:
        """Widened by one field of one run."""
        largest, mean = found.max_abs or 0.0, found.mean_abs or 0.0
        widest = f"{name}: {found.field}" if largest > self.max_abs else self.widest
        return Spread(max(self.max_abs, largest), max(self.mean_abs, mean), widest)


def measure(base: Capture, others: Mapping[str, Capture]) -> dict[str, Spread]:
    """The spread of ``others``, by what was changed, around ``base``, at each place of the table that they reach.

    Raises CaptureError when a stage that is judged by bits differs: then the runs did not do the same, and what their
    models computed cannot be compared.
    """
    exact = exact_advantages(base.config)
    spreads: dict[str, Spread] = {}
    for name, other in others.items():
        verdict = compare(base, other, tolerances={}, by_position=False)
        for found in verdict.fields:
            place = _place(found)
            if place and f"{found.stage}.{found.field}" not in exact:
                spreads[place] = spreads.get(place, Spread()).with_seen(found, name)
            elif found.status.failed and found.kind is not Kind.WEIGHTS:
                raise CaptureError(
                    f"the run with other {name} did something else: {verdict.describe(found)}; calibrate on recorded "
                    "sessions (examples/recorded_sessions), whose tokens no rounding changes"
                )
    return spreads


def proposed(spreads: Mapping[str, Spread], safety: float = SAFETY) -> dict[str, Tolerance]:
    """``safety`` times each spread, in the order of the table; a place that never differed is exact."""
    return {
        place: Tolerance(safety * spreads[place].max_abs, safety * spreads[place].mean_abs)
        if spreads[place].max_abs
        else EXACT
        for place in TABLE
        if place in spreads
    }


def repeated(
    arguments: Sequence[str], ways: Iterable[Perturbation], directory: Path, trainer: str
) -> Iterator[Capture]:
    """Record ``verlift parity record ARGUMENTS`` once a way, each in a process of its own: kernels are chosen when one
    starts. Raises CaptureError with the end of the log of a run that recorded nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, way in enumerate(ways):
        out, log = directory / str(number), directory / f"{number}.log"
        command = [sys.executable, "-m", "verlift.main", "parity", "record", *arguments, *way.overrides]
        options = ["--trainer", trainer, "--out", str(out), "--allow-dirty", "--kept-bytes", str(_KEEP_ALL)]
        with log.open("w") as stream:
            subprocess.run(
                [*command, *options],
                env={**os.environ, **way.environment},
                stdout=stream,
                stderr=stream,
                check=False,
            )
        if not out.exists():
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
            run = f"the run with other {way.name}" if way.overrides or way.environment else "the run as it is"
            raise CaptureError(f"{run} recorded nothing; the end of {log}:\n{tail}")
        yield Baseline.open(out).captures[trainer]


def _place(found: FieldVerdict) -> str | None:
    """Where the table has this field; None for what is judged by bits, and for digests, which have no distance."""
    if found.kind is Kind.WEIGHTS and found.max_abs is None:
        return None
    return next((name for name in (f"{found.stage}.{found.field}", found.stage) if name in TABLE), None)
