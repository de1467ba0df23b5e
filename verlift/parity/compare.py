"""``verlift parity compare``: set two captures against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verlift.parity.app import GitHub, ToleranceFile, Verbose, app, guarded


@app.command()
def compare(
    left: Annotated[Path, typer.Argument(metavar="A", help="Directory of a capture.")],
    right: Annotated[Path, typer.Argument(metavar="B", help="Directory of the capture to set against it.")],
    report: Annotated[
        Path, typer.Option(help="Where to write the JSON report; JUnit XML and the HTML page go beside it.")
    ] = Path("report.json"),
    github: GitHub = None,
    tolerances: ToleranceFile = None,
    verbose: Verbose = False,
) -> None:
    """Compare two captures stage by stage and name the first difference."""

    def work() -> int:
        # The harness imports torch, which takes seconds: `verlift --help` does not pay for it.
        from parity_tests.capture import Capture
        from parity_tests.compare import compare as compare_captures
        from parity_tests.report import Outputs, Report, tell
        from parity_tests.tolerances import read_tolerances

        captures = Capture.open(left), Capture.open(right)
        limits = read_tolerances(tolerances) if tolerances else None
        found = Report.of(compare_captures(*captures, limits), *captures)
        return tell(found, Outputs.beside(report), github, verbose)

    raise typer.Exit(guarded(work, github=github))
