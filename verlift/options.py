"""Arguments that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from omegaconf import DictConfig

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[key=value | +key=value | ++key=value | ~key]...",
        help="Overrides in hydra's syntax, with verl's key names, such as trainer.use_v1=false.",
        show_default=False,
    ),
]

ConfigName = Annotated[
    str,
    typer.Option(
        "--config-name", "-cn", metavar="NAME", help="The config: ppo_trainer, tiny, smollm2, or one of yours."
    ),
]

ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config-path", "-cp", metavar="DIR", help="Folder of your config.", show_default="verlift's configs"
    ),
]


def read_config(
    config_name: str,
    config_path: Path | None,
    overrides: list[str] | None,
    config_dirs: Sequence[str] = (),
    old_code: bool = False,
) -> DictConfig:
    """Load the config and print its notes to stderr. Raises ``ConfigError``.

    config_dirs: folders that configs are looked up in as well. old_code: whether the command was written for verl.
    """
    # Reading a config imports torch, for the names of the algorithms: `verlift --help` does not pay for it.
    from rich.console import Console

    from runtime.config import CONVERSIONS, OLD_CODE, format_notes, load_config

    conversions = OLD_CODE if old_code else CONVERSIONS
    loaded = load_config(config_name, overrides or (), config_path, conversions, config_dirs)
    if loaded.notes:
        Console(stderr=True).print(
            format_notes(loaded.notes), style="yellow", markup=False, highlight=False, soft_wrap=True
        )
    return loaded.config
