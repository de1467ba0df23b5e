"""``verlift parity record``: keep what a run computes at this commit as a golden baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verlift.options import ConfigName, ConfigPath, Overrides
from verlift.parity.app import TrainerChoice, Trainers, app, guarded

AllowDirty = Annotated[bool, typer.Option(help="Record a tree that is not committed; the baseline says so.")]


@app.command()
def record(
    overrides: Overrides = None,
    config_name: ConfigName = "ppo_trainer",
    config_path: ConfigPath = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps; by default trainer.total_training_steps, or 2.")
    ] = None,
    trainer: TrainerChoice = Trainers.BOTH,
    out: Annotated[Path | None, typer.Option(help="New folder for the baseline.")] = None,
    update: Annotated[
        Path | None, typer.Option(metavar="BASELINE", help="Run the config of a baseline again, and replace it.")
    ] = None,
    kept_bytes: Annotated[
        int | None, typer.Option(min=0, help="Keep of a larger column the sha256 alone.", show_default="65536")
    ] = None,
    allow_dirty: AllowDirty = False,
) -> None:
    """Record a golden baseline for `verlift parity check`: small, to be checked in.

    It is not written when the trainers disagree or the run proves nothing (exit 1), nor from a dirty tree (exit 2).
    """

    def work() -> int:
        from parity_tests.git import TreeState
        from parity_tests.golden import Baseline
        from parity_tests.golden_run import Source, record_run, update_run
        from parity_tests.report import print_report
        from runtime.errors import ConfigError

        if (out is None) == (update is None):
            raise ConfigError("give either --out DIR for a new baseline or --update BASELINE for one that is there")
        if update and (overrides or config_path):
            raise ConfigError("--update runs the config that the baseline names; record another one with --out")
        tree = TreeState.read(Path.cwd())
        if not allow_dirty:
            tree.refuse_dirty()
        if update:
            result = update_run(Baseline.open(update), tree, kept_bytes)
        else:
            assert out is not None
            folder = config_path.as_posix() if config_path else None
            source = Source(config_name, folder, tuple(overrides or ()), steps, trainer.names)
            result = record_run(source, out, tree, kept_bytes)
        if not isinstance(result, Baseline):
            print_report(result)
            return result.exit_code
        print(result.summary)
        return 0

    raise typer.Exit(guarded(work))
