"""``verlift parity run``: run both trainers on one config and prove that they agree, or say where they part first."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from verlift.options import ConfigName, ConfigPath, Overrides, read_config
from verlift.parity.app import GitHub, Verbose, app, guarded


@app.command()
def run(
    overrides: Overrides = None,
    config_name: ConfigName = "ppo_trainer",
    config_path: ConfigPath = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps; by default trainer.total_training_steps, or 2.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New folder for captures and reports.", show_default="runs/parity-TIME")
    ] = None,
    weights: Annotated[bool, typer.Option(help="Compare the weights after the last step, too.")] = True,
    github: GitHub = None,
    verbose: Verbose = False,
) -> None:
    """Run the legacy and the V1 trainer on one config and compare every stage of every step."""

    def work() -> int:
        config = read_config(config_name, config_path, overrides)
        from parity_tests.capture import Capture
        from parity_tests.report import Outputs, Report, tell
        from parity_tests.run import TRAINERS, run_parity

        directory = out or Path("runs") / f"parity-{datetime.now():%Y%m%d-%H%M%S}"
        verdict = run_parity(config, directory, steps, weights)
        legacy, v1 = (Capture.open(directory / name) for name in TRAINERS)
        return tell(Report.of(verdict, legacy, v1), Outputs.beside(directory / "report.json"), github, verbose)

    raise typer.Exit(guarded(work, github=github))
