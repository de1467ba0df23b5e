"""``verlift parity import``: make a capture of ``DataProto`` files that were saved elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verlift.parity.app import app, guarded


@app.command("import")
def import_files(
    files: Annotated[list[Path], typer.Argument(help="Files of DataProto.save_to_disk, of verl or of verlift.")],
    stages: Annotated[list[str], typer.Option("--stage", help="The stage that each was saved after, in that order.")],
    out: Annotated[Path, typer.Option(help="New folder for the capture.")],
    steps: Annotated[
        list[int] | None, typer.Option("--step", min=1, help="The step of each; one number is that of all.")
    ] = None,
) -> None:
    """Make a capture of saved batches: of each file the columns that are new or changed since the one before."""

    def work() -> int:
        from parity_tests.importing import SavedStage, import_stages
        from runtime.errors import CaptureError

        of_each = steps or [1]
        of_each = of_each * len(files) if len(of_each) == 1 else of_each
        if not len(files) == len(stages) == len(of_each):
            raise CaptureError(
                f"{len(files)} files, {len(stages)} --stage and {len(of_each)} --step; give each file its stage, "
                "and each its step or one step for all"
            )
        capture = import_stages([SavedStage(*each) for each in zip(files, stages, of_each, strict=True)], out)
        for stage in capture.stages():
            columns = ", ".join(stage.columns) or "no column"
            print(f"step {stage.step} {stage.stage}: {len(stage.keys)} rows, {columns}")
        return 0

    raise typer.Exit(guarded(work))
