"""``verlift parity bisect``: which key of a config, or which commit, changed the numbers."""

from __future__ import annotations

import shlex
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verlift.options import ConfigName, ConfigPath, Overrides, read_config
from verlift.parity.app import app, guarded

if TYPE_CHECKING:
    from parity_tests.bisect import KeyFinding
    from parity_tests.bisect_git import CommitFinding

RUNNER = "{python} -m verlift.main parity run --out {out}"


@app.command()
def bisect(
    overrides: Overrides = None,
    config_name: ConfigName = "ppo_trainer",
    config_path: ConfigPath = None,
    left: Annotated[str | None, typer.Option(metavar="CONFIG", help="'[NAME] [overrides]' of the good run.")] = None,
    right: Annotated[str | None, typer.Option(metavar="CONFIG", help="'[NAME] [overrides]' of the other.")] = None,
    git: Annotated[
        tuple[str, str] | None, typer.Option(metavar="GOOD BAD", help="Two commits of the repository here.")
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(help="With --git: what leaves captures in {out}; {python} is this one.", show_default=RUNNER),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps of each run.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="New folder for captures and logs.", show_default="runs/bisect-TIME")
    ] = None,
) -> None:
    """Find what changed the numbers: the key between two configs, or the commit between two.

    Configs are run with the trainer that they name (trainer.use_v1). Exit 0: nothing changed. 1: found. 2: could not.
    """

    def work() -> int:
        from runtime.errors import ConfigError

        directory = out or Path("runs") / f"bisect-{datetime.now():%Y%m%d-%H%M%S}"
        finding: KeyFinding | CommitFinding
        if git and left is None and right is None:
            words = shlex.split(command) if command else _runner(config_name, config_path, steps, overrides)
            finding = _between_commits(words, git, directory)
        elif left is not None and right is not None and git is None and command is None:
            sides = [(*_named(text, config_name), config_path) for text in (left, right)]
            finding = _between_configs(sides, overrides or [], steps, directory)
        else:
            raise ConfigError("give either --left and --right, two configs, or --git GOOD BAD, two commits")
        for line in finding.lines():
            print(line)
        return 1 if finding.first else 0

    raise typer.Exit(guarded(work))


def _named(text: str, default: str) -> tuple[str, list[str]]:
    """The config's name and the overrides in ``[NAME] [key=value]...``."""
    words = shlex.split(text)
    if words and "=" not in words[0] and not words[0].startswith("~"):
        return words[0], words[1:]
    return default, words


def _runner(name: str, path: Path | None, steps: int | None, overrides: list[str] | None) -> list[str]:
    options = ["--config-name", name]
    options += ["--config-path", path.as_posix()] if path else []
    options += ["--steps", str(steps)] if steps else []
    return [*RUNNER.split(), *options, *(overrides or [])]


def _between_commits(words: list[str], commits: tuple[str, str], directory: Path) -> CommitFinding:
    from parity_tests.bisect_git import CommitRuns, find_commit

    return find_commit(CommitRuns(Path.cwd(), words, directory.absolute()), *commits)


def _between_configs(
    sides: list[tuple[str, list[str], Path | None]], shared: list[str], steps: int | None, directory: Path
) -> KeyFinding:
    from itertools import count

    from omegaconf import DictConfig

    from parity_tests.bisect import find_key
    from parity_tests.capture import Capture
    from parity_tests.run import DEFAULT_STEPS, TRAINERS, capture_run, for_parity

    left, right = (read_config(name, path, [*shared, *own]) for name, own, path in sides)
    numbers = count(1)

    def run(config: DictConfig) -> Capture:
        folder = directory / f"run-{next(numbers)}"
        name = "v1" if config.trainer.use_v1 else "legacy"
        length = steps or config.trainer.total_training_steps or DEFAULT_STEPS
        return capture_run(TRAINERS[name], for_parity(config, name, length, folder), folder, export_weights=False)

    return find_key(left, right, run)
