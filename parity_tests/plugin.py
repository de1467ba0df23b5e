"""A pytest plugin: ``pytest --parity-config my.yaml`` runs both trainers on a config, a test for each step and stage.

It comes with the package. Nothing is imported that takes time unless the option is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from parity_tests.verdict import Verdict

WEIGHTS, MEANING = "weights", "proves something"
"""Tests beside those of stages: the weights after the last step, and that the agreement is not vacuous."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the command line."""
    group = parser.getgroup("parity", "parity of the legacy and the V1 trainer (verlift)")
    group.addoption("--parity-config", metavar="FILE", help="config to run both trainers on; a test a step and stage")
    group.addoption("--parity-steps", type=int, metavar="N", help="training steps, in place of the config's")
    group.addoption(
        "--parity-override", action="append", default=[], metavar="KEY=VALUE", help="change a key; may be repeated"
    )
    group.addoption("--parity-out", metavar="DIR", help="new folder for captures and report.json, which else are gone")


def pytest_configure(config: pytest.Config) -> None:
    """Collect the config like a file of tests that was named on the command line."""
    given = config.getoption("--parity-config")
    if given is not None:
        path = Path(given)
        if not path.is_file():
            raise pytest.UsageError(f"--parity-config={given}: there is no such file")
        if str(path) not in config.args:
            config.args.append(str(path))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> ParityFile | None:
    """The config that ``--parity-config`` names."""
    given = parent.config.getoption("--parity-config")
    if given is None or file_path != Path(given).absolute():
        return None
    return ParityFile.from_parent(parent, path=file_path)


class ParityFile(pytest.File):
    """One config; the run is made when the first of its tests asks for the verdict."""

    _verdict: Verdict | None = None
    _error: Exception | None = None

    def collect(self) -> Iterator[ParityStage]:
        """One test for each stage that the config asks for, in the order in which they run."""
        from runtime.trainer.stages import configured_stages, updates_actor

        config = self._config()
        for step in range(1, self._steps(config) + 1):
            for stage in configured_stages(config):
                if stage != "update_actor" or updates_actor(config, step):
                    yield ParityStage.from_parent(self, name=f"step {step} {stage}", step=step, stage=stage)
        yield ParityStage.from_parent(self, name=WEIGHTS, step=None, stage=WEIGHTS)
        yield ParityStage.from_parent(self, name=MEANING, step=None, stage=MEANING)

    def verdict(self) -> Verdict:
        """What the run says; an error that ended it is raised for every test alike."""
        if self._verdict is None and self._error is None:
            try:
                self._verdict = self._run()
            except Exception as error:  # told by each test, so that the last one says as much as the first
                self._error = error
        if self._error is not None:
            raise ParityFailure(f"PARITY COULD NOT RUN: {type(self._error).__name__}: {self._error}")
        assert self._verdict is not None
        return self._verdict

    def _config(self) -> Any:
        from runtime.environment import set_worker_env

        set_worker_env()
        from runtime.config import load_config
        from runtime.errors import VerliftError

        try:
            return load_config(self.path.stem, self.config.getoption("--parity-override"), self.path.parent).config
        except VerliftError as error:
            raise self.CollectError(str(error)) from None

    def _steps(self, config: Any) -> int:
        from parity_tests.run import DEFAULT_STEPS

        return self.config.getoption("--parity-steps") or config.trainer.total_training_steps or DEFAULT_STEPS

    def _run(self) -> Verdict:
        from tempfile import TemporaryDirectory

        from parity_tests import run
        from parity_tests.report import write_report

        config = self._config()
        with TemporaryDirectory(prefix="verlift-parity-") as folder:
            directory = Path(self.config.getoption("--parity-out") or Path(folder) / "run")
            verdict = run.run_parity(config, directory, self._steps(config))
            write_report(verdict, directory / "report.json")
        return verdict


class ParityFailure(Exception):
    """A difference, told in one line."""


class ParityStage(pytest.Item):
    """Every field of one stage of one step is equal on both sides."""

    def __init__(self, *, step: int | None, stage: str, **more: Any) -> None:
        super().__init__(**more)
        self.step, self.stage = step, stage

    def runtest(self) -> None:
        """Raise ParityFailure with the first field of this stage that differs, and say which stage was first."""
        assert isinstance(self.parent, ParityFile)
        verdict = self.parent.verdict()
        if self.stage == MEANING:
            if verdict.vacuous:
                raise ParityFailure(f"PARITY VACUOUS: {'; '.join(verdict.vacuous)}")
            return
        fields = [field for field in verdict.fields if field.stage == self.stage and self.step in (None, field.step)]
        if not fields and self.stage != WEIGHTS:
            raise ParityFailure(f"stage {self.stage} of step {self.step} did not run")
        wrong = next((field for field in fields if field.status.failed), None)
        if wrong is not None:
            note = (
                "" if wrong == verdict.first or verdict.first is None else f"\nfirst: {verdict.describe(verdict.first)}"
            )
            raise ParityFailure(f"PARITY DIVERGED at {verdict.describe(wrong)}{note}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *_: Any, **__: Any) -> Any:
        """One line for a difference, and a traceback for whatever else."""
        return str(excinfo.value) if isinstance(excinfo.value, ParityFailure) else super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where it stands and what it is called."""
        return self.path, None, self.name
