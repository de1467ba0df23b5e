"""``verlift parity reference``: the third opinion on a capture, computed plainly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verlift.parity.app import GitHub, app, guarded


@app.command()
def reference(
    capture: Annotated[Path, typer.Argument(help="Directory of a capture, such as OUT/v1 of a parity run.")],
    model: Annotated[
        str | None, typer.Option(help="The model before training.", show_default="the one in the capture's config")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write the JSON report here; JUnit XML and the HTML page go beside it.")
    ] = None,
    github: GitHub = None,
) -> None:
    """Compute the first step of a capture once more, plainly and without Ray, and compare within 1e-5.

    A fault in code that both trainers share changes both alike: only an independent computation shows it.
    """

    def work() -> int:
        from transformers.utils import logging as transformers_logging

        from parity_tests.capture import Capture
        from parity_tests.report import Outputs, Report, tell
        from parity_tests.third_opinion import against_reference
        from runtime.fs import local_model

        # A value head is new, and said to be missing; a bar for a second's load says nothing.
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        opened = Capture.open(capture)
        verdict = against_reference(opened, local_model(model) if model else None)
        outputs = Outputs.beside(report) if report else Outputs()
        return tell(Report.of(verdict, None, opened), outputs, github, verbose=True)

    raise typer.Exit(guarded(work, github=github))
