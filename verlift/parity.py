"""``verlift parity``: run both trainers on one config and prove that they agree, or say where they part first."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from runtime.errors import VerliftError
from verlift.options import ConfigName, ConfigPath, Overrides, read_config

COULD_NOT_RUN = 2

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="One line for every field, equal ones too.")]

app = typer.Typer(
    name="parity",
    help="Prove that the legacy and the V1 trainer agree. "
    "Exit 0: they do. 1: they diverged, or the run proves nothing. 2: it could not run.",
    no_args_is_help=True,
)


@app.command()
def run(
    overrides: Overrides = None,
    config_name: ConfigName = "ppo_trainer",
    config_path: ConfigPath = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps; by default trainer.total_training_steps, or 2.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New folder for captures and report.json.", show_default="runs/parity-TIME")
    ] = None,
    weights: Annotated[bool, typer.Option(help="Compare the weights after the last step, too.")] = True,
    verbose: Verbose = False,
) -> None:
    """Run the legacy and the V1 trainer on one config and compare every stage of every step."""

    def work() -> int:
        config = read_config(config_name, config_path, overrides)
        from parity_tests.report import print_report, write_report
        from parity_tests.run import run_parity

        directory = out or Path("runs") / f"parity-{datetime.now():%Y%m%d-%H%M%S}"
        verdict = run_parity(config, directory, steps, weights)
        write_report(verdict, directory / "report.json")
        print_report(verdict, verbose=verbose)
        return verdict.exit_code

    raise typer.Exit(_guarded(work))


@app.command()
def compare(
    left: Annotated[Path, typer.Argument(metavar="A", help="Directory of a capture.")],
    right: Annotated[Path, typer.Argument(metavar="B", help="Directory of the capture to set against it.")],
    report: Annotated[Path, typer.Option(help="Where to write the JSON report.")] = Path("report.json"),
    verbose: Verbose = False,
) -> None:
    """Compare two captures stage by stage and name the first difference."""

    def work() -> int:
        # The harness imports torch, which takes seconds: `verlift --help` does not pay for it.
        from parity_tests.capture import Capture
        from parity_tests.compare import compare as compare_captures
        from parity_tests.report import print_report, write_report

        verdict = compare_captures(Capture.open(left), Capture.open(right))
        write_report(verdict, report)
        print_report(verdict, verbose=verbose)
        return verdict.exit_code

    raise typer.Exit(_guarded(work))


@app.command()
def reference(
    capture: Annotated[Path, typer.Argument(help="Directory of a capture, such as OUT/v1 of a parity run.")],
    model: Annotated[
        str | None, typer.Option(help="The model before training.", show_default="the one in the capture's config")
    ] = None,
) -> None:
    """Compute the first step of a capture once more, plainly and without Ray, and compare within 1e-5.

    A fault in code that both trainers share changes both alike: only an independent computation shows it.
    """

    def work() -> int:
        from transformers.utils import logging as transformers_logging

        from parity_tests.capture import Capture
        from parity_tests.report import print_report
        from parity_tests.third_opinion import against_reference
        from runtime.fs import local_model

        # A value head is new, and said to be missing; a bar for a second's load says nothing.
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        verdict = against_reference(Capture.open(capture), local_model(model) if model else None)
        print_report(verdict, verbose=True)
        return verdict.exit_code

    raise typer.Exit(_guarded(work))


def _guarded(work: Callable[[], int]) -> int:
    """The exit code of ``work``; 2 when it raises, so that no failure is read as a divergence."""
    try:
        return work()
    except VerliftError as error:
        print(f"PARITY COULD NOT RUN: {error}", file=sys.stderr)
    except Exception as error:  # whatever it is, it is no verdict
        traceback.print_exc()
        print(f"PARITY COULD NOT RUN: {type(error).__name__}: {error}", file=sys.stderr)
    return COULD_NOT_RUN
