"""``verlift parity``: run both trainers on one config and prove that they agree, or say where they part first."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from runtime.errors import VerliftError

COULD_NOT_RUN = 2

app = typer.Typer(
    name="parity",
    help="Prove that the legacy and the V1 trainer agree. "
    "Exit 0: they do. 1: they diverged, or the run proves nothing. 2: it could not run.",
    no_args_is_help=True,
)


@app.callback()
def parity() -> None:
    """Keep ``compare`` a subcommand, also while there is only one."""


@app.command()
def compare(
    left: Annotated[Path, typer.Argument(metavar="A", help="Directory of a capture.")],
    right: Annotated[Path, typer.Argument(metavar="B", help="Directory of the capture to set against it.")],
    report: Annotated[Path, typer.Option(help="Where to write the JSON report.")] = Path("report.json"),
) -> None:
    """Compare two captures stage by stage and name the first difference."""

    def work() -> int:
        # The harness imports torch, which takes seconds: `verlift --help` does not pay for it.
        from parity_tests.capture import Capture
        from parity_tests.compare import compare as compare_captures
        from parity_tests.report import print_report, write_report

        verdict = compare_captures(Capture.open(left), Capture.open(right))
        write_report(verdict, report)
        print_report(verdict)
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
