"""Run what a baseline is recorded from, and tell what changed since: the environment, the config, or the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from omegaconf import DictConfig

from parity_tests import golden
from parity_tests.capture import Capture
from parity_tests.compare import compare
from parity_tests.git import TreeState
from parity_tests.golden import Baseline
from parity_tests.run import DEFAULT_STEPS, TRAINERS, capture_run, for_parity
from parity_tests.vacuity import vacuous_reasons
from parity_tests.verdict import Status, Tolerance, Verdict
from runtime.config import load_config
from runtime.errors import CaptureError


@dataclass(frozen=True)
class Source:
    """How a run is made again: a config by name and overrides, and which trainers run it for how many steps.

    config_path: folder of the config, as it was given; None is ours. steps: ``trainer.total_training_steps`` if None.
    """

    config_name: str
    config_path: str | None
    overrides: tuple[str, ...]
    steps: int | None
    trainers: tuple[str, ...]

    @classmethod
    def of(cls, baseline: Baseline) -> Source:
        """What ``baseline`` was recorded from; CaptureError when it was made of captures alone."""
        stored = baseline.manifest["source"]
        if not stored:
            raise CaptureError(f"{baseline.directory} does not say which config it was recorded from; record it anew")
        return cls(**{**stored, "overrides": tuple(stored["overrides"]), "trainers": tuple(stored["trainers"])})

    def as_json(self) -> dict[str, Any]:
        """As the baseline keeps it."""
        return asdict(self)

    def config(self) -> DictConfig:
        """The config as it reads today. Raises ConfigError."""
        return load_config(self.config_name, self.overrides, self.config_path).config

    def run(self, directory: Path) -> dict[str, Capture]:
        """Train with each trainer; captures by its name in ``directory/NAME``."""
        config = self.config()
        steps = self.steps or config.trainer.total_training_steps or DEFAULT_STEPS
        folders = {name: directory / name for name in self.trainers}
        return {
            name: capture_run(TRAINERS[name], for_parity(config, name, steps, folder), folder)
            for name, folder in folders.items()
        }


def record_run(source: Source, directory: Path, tree: TreeState, kept_bytes: int | None) -> Baseline | Verdict:
    """Run ``source`` and write its baseline to the new folder ``directory``.

    Returns the verdict, and writes nothing, when the trainers disagree or the run proves nothing.
    """
    golden.refuse_content(directory, update=False)
    with TemporaryDirectory(prefix="verlift-record-") as folder:
        captures = source.run(Path(folder))
        return faults(captures) or golden.record(
            list(captures.values()),
            directory,
            source.as_json(),
            asdict(tree),
            golden.KEPT_BYTES if kept_bytes is None else kept_bytes,
        )


def update_run(former: Baseline, tree: TreeState, kept_bytes: int | None) -> Baseline | Verdict:
    """Run what ``former`` was recorded from, print what changed, and replace it; otherwise as ``record_run``."""
    source = Source.of(former)
    with TemporaryDirectory(prefix="verlift-record-") as folder:
        captures = source.run(Path(folder))
        if fault := faults(captures):
            return fault
        for line in check(former, captures).lines():
            print(line)
        kept_bytes = former.manifest["kept_bytes"] if kept_bytes is None else kept_bytes
        sides = list(captures.values())
        return golden.record(sides, former.directory, source.as_json(), asdict(tree), kept_bytes, update=True)


def faults(captures: Mapping[str, Capture]) -> Verdict | None:
    """Why these captures make no baseline: the trainers do not agree, or the run proves nothing; None if they do."""
    sides = list(captures.values())
    if len(sides) == 2:
        verdict = compare(sides[0], sides[1], by_position=False)
    else:
        verdict = Verdict((sides[0].trainer, "-"), (), vacuous_reasons(sides[0]))
    return verdict if verdict.exit_code else None


@dataclass(frozen=True)
class Findings:
    """What a check found. verdicts: of each trainer, with the sides ``baseline`` and ``now``."""

    verdicts: Mapping[str, Verdict]

    @property
    def environment(self) -> dict[str, tuple[Any, Any]]:
        """Changed versions and parts of the fingerprint, path -> (baseline, now)."""
        return self._metadata("['versions']", "['fingerprint']")

    @property
    def config(self) -> dict[str, tuple[Any, Any]]:
        """Changed keys and seeds, path -> (baseline, now)."""
        return self._metadata("['config']", "['seeds']")

    @property
    def decisive(self) -> Verdict:
        """The verdict of the first trainer that failed, else of the first one."""
        verdicts = list(self.verdicts.values())
        return next((verdict for verdict in verdicts if verdict.exit_code), verdicts[0])

    def lines(self) -> Iterator[str]:
        """The three findings, one after the other; the last line is that of the decisive verdict."""
        for name, changed in (("environment", self.environment), ("config", self.config)):
            yield f"{name}: {f'{len(changed)} changed' if changed else 'unchanged'}"
            yield from (f"  {path}: baseline {old!r}, now {new!r}" for path, (old, new) in changed.items())
        yield "numbers: " + "; ".join(f"{name} {_numbers(verdict)}" for name, verdict in self.verdicts.items())
        yield from dict.fromkeys(f"  {note}" for verdict in self.verdicts.values() for note in verdict.notes)
        yield self.decisive.line

    def _metadata(self, *kinds: str) -> dict[str, tuple[Any, Any]]:
        return {
            path: sides
            for verdict in self.verdicts.values()
            for path, sides in verdict.metadata.items()
            if path.startswith(kinds)
        }


def _numbers(verdict: Verdict) -> str:
    failed = sum(field.status.failed for field in verdict.fields)
    if failed:
        return f"{failed} of {len(verdict.fields)} fields changed"
    within = [field for field in verdict.fields if field.status is Status.WITHIN]
    if within:
        return f"{len(verdict.fields) - len(within)} fields equal to the bit, {len(within)} within tolerance"
    return f"{len(verdict.fields)} fields equal to the bit"


def check(
    baseline: Baseline, captures: Mapping[str, Capture], tolerances: Mapping[str, Tolerance] | None = None
) -> Findings:
    """Set a run of all trainers of ``baseline`` against it."""
    return Findings({name: golden.check(baseline, capture, tolerances) for name, capture in captures.items()})
