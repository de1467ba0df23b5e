"""``verlift inspect``: what a capture, or both of a parity run, hold at every layer, and what looks wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verlift.parity.app import guarded


def inspect(
    folder: Annotated[Path, typer.Argument(metavar="CAPTURE|RUN", help="A capture, or the folder of a parity run.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print units, shapes, lengths, masks, rewards, groups and divisions of a capture, and mark what looks wrong.

    Exit 0: nothing does. 1: something does, or the two sides of a run differ. 2: it could not be read.
    """

    def work() -> int:
        from parity_tests.inspection_report import as_json, exit_code, inspect_folder, print_inspections

        inspections = inspect_folder(folder)
        print(as_json(inspections)) if json else print_inspections(inspections)
        return exit_code(inspections)

    raise typer.Exit(guarded(work, "INSPECT"))
