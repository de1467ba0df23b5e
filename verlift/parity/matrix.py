"""``verlift parity matrix``: both trainers under every two settings that can meet."""

from __future__ import annotations

from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from verlift.parity.app import Verbose, app, guarded


@app.command()
def matrix(
    full: Annotated[bool, typer.Option("--full", help="The full product instead of the pairs; see --sample.")] = False,
    sample: Annotated[int | None, typer.Option(min=1, help="Only so many cells, drawn by the seed.")] = None,
    names: Annotated[
        list[str] | None, typer.Option("--names", help='Only cases and cells whose name holds this, such as "case".')
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the choice of cells and of their batches.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report.json and diverged cells.", show_default="runs/matrix-TIME")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Feed every stage of both trainers alike, in cells in which every two settings meet, and compare them.

    First come the cases whose right values are known. The axes: estimator x loss x aggregation x shape of the batch x
    micro-batch x ranks x layout x KL x dtype, on the tiny model.
    """

    def work() -> int:
        from runtime.environment import set_worker_env

        set_worker_env()
        from parity_tests.isolated import Bench
        from parity_tests.matrix.cells import Outcome, chosen_cells, counts, name_of, run_cells
        from parity_tests.matrix.facts import FACTS, run_facts
        from parity_tests.matrix.report import last_line, told, write_report
        from runtime.errors import ConfigError

        def wanted(name: str) -> bool:
            return not names or any(part in name for part in names)

        directory = out or Path("runs") / f"matrix-{datetime.now():%Y%m%d-%H%M%S}"
        facts = [fact for fact in FACTS if wanted(fact.title)]
        # A cell keeps the number, and with it the seed, that it has among all of them.
        cells = ((at, cell) for at, cell in enumerate(chosen_cells(full, sample, seed)) if wanted(name_of(cell)))
        with Bench() as bench:
            found = chain(run_facts(bench, facts, directory), run_cells(bench, cells, directory, seed))
            results = told(found, verbose)
        if not results:
            raise ConfigError(f"--names {' '.join(names or ())} is in the name of no case and of no cell")
        write_report(results, directory / "report.json", full=full, sample=sample, names=names, seed=seed)
        print(last_line(counts(results)))
        return 1 if counts(results)[Outcome.DIVERGED] else 0

    raise typer.Exit(guarded(work))
