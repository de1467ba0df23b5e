"""``verlift parity recorder``: the file with which a user of verl records their own legacy trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verlift.parity.app import app, guarded


@app.command()
def recorder(
    out: Annotated[Path | None, typer.Option(help="Where to write it.", show_default="print it")] = None,
) -> None:
    """Give the recorder: one file, to be copied beside a trainer of verl, that writes captures."""

    def work() -> int:
        from importlib import resources

        from parity_tests.storage import written_beside

        text = resources.files("parity_tests.recorder").joinpath("verl_recorder.py").read_text(encoding="utf-8")
        if out is None:
            print(text, end="")
            return 0
        with written_beside(out) as temporary:
            temporary.write_text(text, encoding="utf-8")
        print(f"wrote {out}")
        return 0

    raise typer.Exit(guarded(work))
