"""``verlift parity mutants``: plant faults in both trainers and see that the harness finds them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from verlift.parity.app import app, guarded


@app.command()
def mutants(
    names: Annotated[list[str] | None, typer.Option("--names", help="Only mutants whose name holds this.")] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of each model; faults between ranks need 2.")] = 2,
    out: Annotated[
        Path | None, typer.Option(help="Folder for captures and report.json.", show_default="runs/mutants-TIME")
    ] = None,
) -> None:
    """Plant faults of one line and say which question (isolated, chained, golden, reference) finds each, and where."""

    def work() -> int:
        from runtime.environment import set_worker_env

        set_worker_env()
        from transformers.utils import logging as transformers_logging

        from parity_tests.isolated import Bench
        from parity_tests.mutants.registry import MUTANTS
        from parity_tests.mutants.report import print_table, told, write_report
        from parity_tests.mutants.score import Prover

        # The reference makes a value head, and transformers would say so each time.
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        directory = out or Path("runs") / f"mutants-{datetime.now():%Y%m%d-%H%M%S}"
        chosen = [mutant for name, mutant in MUTANTS.items() if not names or any(part in name for part in names)]
        with Bench() as bench:
            prover = Prover(bench, directory, ranks)
            scores = told(prover.score(mutant) for mutant in chosen)
        write_report(scores, directory / "report.json")
        print_table(scores)
        return 0 if all(score.found for score in scores) else 1

    raise typer.Exit(guarded(work))
