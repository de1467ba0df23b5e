"""``verlift parity report``: tell of a finished run once more, for a person, for CI, or for both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runtime.errors import CaptureError
from verlift.parity.app import GitHub, ToleranceFile, Verbose, app, guarded

if TYPE_CHECKING:
    from parity_tests.capture import Capture

SIDES = ("legacy", "v1")


@app.command()
def report(
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="The folder of a parity run, with legacy/ and v1/ in it.")
    ] = None,
    left: Annotated[Path | None, typer.Option(help="Instead of PATH: a capture.", metavar="A")] = None,
    right: Annotated[Path | None, typer.Option(help="The capture to set against it.", metavar="B")] = None,
    html: Annotated[Path | None, typer.Option(help="Where to write the page.", metavar="FILE")] = None,
    junit: Annotated[Path | None, typer.Option(help="Where to write JUnit XML.", metavar="FILE")] = None,
    json: Annotated[Path | None, typer.Option(help="Where to write the JSON report.", metavar="FILE")] = None,
    github: GitHub = None,
    tolerances: ToleranceFile = None,
    verbose: Verbose = False,
) -> None:
    """Compare the captures of a finished run again and tell what came out.

    Without a file to write, report.json, report.xml and report.html are written into PATH, or here for two captures.
    """

    def work() -> int:
        from parity_tests.compare import compare
        from parity_tests.report import Outputs, Report, tell
        from parity_tests.tolerances import read_tolerances

        ours, theirs = _captures(path, left, right)
        limits = read_tolerances(tolerances) if tolerances else None
        # Two captures of one run have the same uids; of captures from elsewhere the comparison finds out.
        verdict = compare(ours, theirs, limits, by_position=False if path else None)
        given = Outputs(json, junit, html)
        outputs = given if any((html, junit, json)) else Outputs.beside((path or Path()) / "report.json")
        return tell(Report.of(verdict, ours, theirs), outputs, github, verbose)

    raise typer.Exit(guarded(work, github=github))


def _captures(path: Path | None, left: Path | None, right: Path | None) -> tuple[Capture, Capture]:
    from parity_tests.capture import Capture

    if path and not (left or right):
        left, right = (path / name for name in SIDES)
    elif path or not (left and right):
        raise CaptureError("give either the folder of a parity run, or two captures with --left and --right")
    return Capture.open(left), Capture.open(right)
