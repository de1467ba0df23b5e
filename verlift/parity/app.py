"""What the commands of ``verlift parity`` share: the application they join, and their exit codes."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from parity_tests.reporting.workflow import error as workflow_error
from parity_tests.reporting.workflow import is_wanted
from runtime.errors import VerliftError

COULD_NOT_RUN = 2

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="One line for every field, equal ones too.")]
GitHub = Annotated[
    bool | None,
    typer.Option(
        "--github/--no-github", help="Print annotations for GitHub Actions.", show_default="when GITHUB_ACTIONS=true"
    ),
]

ToleranceFile = Annotated[
    Path | None,
    typer.Option(
        "--tolerances",
        metavar="FILE",
        help="Judge by this file instead, as `verlift parity calibrate` writes it.",
        show_default="bits; the table of docs/parity.md where fingerprints differ",
    ),
]


class Trainers(StrEnum):
    """Which trainers a command runs."""

    BOTH = "both"
    LEGACY = "legacy"
    V1 = "v1"

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, in the order in which they run."""
        return ("legacy", "v1") if self is Trainers.BOTH else (self.value,)


TrainerChoice = Annotated[Trainers, typer.Option("--trainer", help="Which trainers to run.")]

app = typer.Typer(
    name="parity",
    help="Prove that the legacy and the V1 trainer agree. "
    "Exit 0: they do. 1: they diverged, or the run proves nothing. 2: it could not run.",
    no_args_is_help=True,
)


def guarded(work: Callable[[], int], what: str = "PARITY", github: bool | None = None) -> int:
    """The exit code of ``work``; 2 when it raises, so that no failure is read as a divergence.

    what: could not run. github: annotate that; None does so where GitHub Actions runs this.
    """
    try:
        return work()
    except VerliftError as error:
        reason = str(error)
    except Exception as error:  # whatever it is, it is no verdict
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
    if is_wanted(github):
        print(workflow_error(f"{what.capitalize()} could not run", reason), flush=True)
    print(f"{what} COULD NOT RUN: {reason}", file=sys.stderr)
    return COULD_NOT_RUN
