"""``verlift parity check``: run the config of a golden baseline again, and say what changed."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from verlift.parity.app import GitHub, ToleranceFile, Verbose, app, guarded


@app.command()
def check(
    baseline: Annotated[Path, typer.Argument(metavar="BASELINE", help="Folder that `verlift parity record` wrote.")],
    out: Annotated[
        Path | None, typer.Option(help="New folder for captures and reports.", show_default="runs/check-TIME")
    ] = None,
    tolerances: ToleranceFile = None,
    github: GitHub = None,
    verbose: Verbose = False,
) -> None:
    """Run a baseline's config again and say whether the environment, the config or the numbers changed.

    Only the numbers decide the exit code: 0 for none, 1 for a change, 2 when it could not run.
    """

    def work() -> int:
        from parity_tests.golden import Baseline
        from parity_tests.golden_run import Source
        from parity_tests.golden_run import check as check_captures
        from parity_tests.report import Outputs, Report, tell
        from parity_tests.tolerances import read_tolerances

        recorded = Baseline.open(baseline)
        limits = read_tolerances(tolerances) if tolerances else None
        directory = out or Path("runs") / f"check-{datetime.now():%Y%m%d-%H%M%S}"
        captures = Source.of(recorded).run(directory)
        findings = check_captures(recorded, captures, limits)
        for name, verdict in findings.verdicts.items():
            print(f"{name}:")
            report = Report.of(verdict, recorded.captures[name], captures[name], subject=name)
            tell(report, Outputs.beside(directory / f"report-{name}.json"), github, verbose)
        for line in findings.lines():
            print(line)
        return findings.decisive.exit_code

    raise typer.Exit(guarded(work, github=github))
