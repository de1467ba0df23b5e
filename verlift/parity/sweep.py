"""``verlift parity sweep``: random configs and batches on which both trainers must agree."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from verlift.parity.app import Verbose, app, guarded


@app.command()
def sweep(
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 500,
    seed: Annotated[int, typer.Option(help="Of the first one; the next has the next seed.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report.json and alarms.", show_default="runs/sweep-TIME")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Feed every stage of both trainers random batches under random configs; any difference is an alarm.

    An alarm prints its seed: ``verlift parity sweep --count 1 --seed SEED`` repeats it.
    """

    def work() -> int:
        from runtime.environment import set_worker_env

        set_worker_env()
        from parity_tests.isolated import Bench
        from parity_tests.matrix.cells import Outcome, counts
        from parity_tests.matrix.report import last_line, told, write_report
        from parity_tests.sweep import sweep as sweeps

        directory = out or Path("runs") / f"sweep-{datetime.now():%Y%m%d-%H%M%S}"
        with Bench() as bench:
            results = told(sweeps(bench, directory, count, seed), verbose, expected=Outcome.REFUSED)
        write_report(results, directory / "report.json", count=count, seed=seed)
        print(last_line(counts(results), "SWEEP"))
        return 1 if counts(results)[Outcome.DIVERGED] else 0

    raise typer.Exit(guarded(work))
