"""``verlift``: the command line. Each command is one file; this one gathers them and turns errors into one message."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from verlift import doctor

DEBUG = "--debug"
USER_ERROR = 2
"""Exit code of an error that the user can put right."""


def build_app() -> typer.Typer:
    """All commands. Nothing heavy is imported before a command runs."""
    from verlift import data, parity
    from verlift.execute import execute
    from verlift.inspect import inspect
    from verlift.train import train

    app = typer.Typer(
        name="verlift",
        help="Run verl's legacy and V1 trainers on one algorithm core, and prove that they agree.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_before_command)
    app.command()(train)
    app.command()(inspect)
    # Options after the first word of the command are the command's own.
    app.command("exec", context_settings={"allow_interspersed_args": False})(execute)
    app.add_typer(parity.app, name="parity")
    app.add_typer(data.app, name="data")
    app.add_typer(doctor.app, name="doctor")
    return app


def _before_command(
    debug: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an error. Also VERLIFT_DEBUG=1.")] = False,
) -> None:
    if debug:
        os.environ["VERLIFT_DEBUG"] = "1"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: with the command's code, or 2 and one message for an error of the user's."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    ours = given[: given.index("--")] if "--" in given else given  # what follows is a command of the user's
    if DEBUG in ours:  # it may stand anywhere
        given = [DEBUG, *(argument for argument in ours if argument != DEBUG), *given[len(ours) :]]
    try:
        from runtime.environment import set_worker_env  # here, since another package may stand in the place of ours

        set_worker_env()
        build_app()(args=given, prog_name="verlift")
    except ImportError as error:
        sys.exit(report_shadows(error))
    except Exception as error:
        sys.exit(report(error))
    sys.exit(0)


def report_shadows(error: ImportError) -> int:
    """Name what stands in the place of our packages, or report ``error`` when nothing does; return the exit code."""
    hidden = [finding for finding in doctor.check_packages() if finding.status == "fail"]
    if not hidden:
        return report(error)
    doctor.print_findings(hidden, Console(stderr=True))
    return USER_ERROR


def report(error: Exception) -> int:
    """Print ``error`` to stderr and return the exit code: one message for the user's to mend, else a traceback."""
    from runtime.errors import VerliftError

    cause = root_cause(error)
    known = isinstance(cause, VerliftError) or type(cause).__module__ == "shared_algos.errors"
    if not known or os.environ.get("VERLIFT_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    if known:
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print("error:", style="bold red", end=" ")
        console.print(f"{cause} ({type(cause).__name__})", markup=False)
    return USER_ERROR if known else 1


def root_cause(error: BaseException) -> BaseException:
    """The error that was raised in a Ray worker, out of the ``RayTaskError`` around it; any other error as it is."""
    while isinstance(cause := getattr(error, "cause", None), BaseException):
        error = cause
    return error


if __name__ == "__main__":
    main()
