"""``python -m verl.trainer.main_ppo a.b=c ...`` under ``verlift exec``: an old launch command as it stands.

Its keys, of any version, are read as ``verlift train`` reads them: what was moved, converted or has no effect is told
on the way in; what is not built is refused with a reason.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

_OUR_CONFIGS = ("config", "verl/trainer/config")
"""What ``--config-path`` says where verl's own folder is meant; hydra takes it from where ``main_ppo.py`` lies."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """``main_ppo``: the trainer that ``trainer.use_v1`` selects."""
    _run(arguments, ())


def main_v0(arguments: Sequence[str] | None = None) -> NoReturn:
    """``main_ppo_v0``: the legacy trainer."""
    _run(arguments, ("trainer.use_v1=false",))


def main_sync(arguments: Sequence[str] | None = None) -> NoReturn:
    """``main_ppo_sync``: the V1 trainer, in its mode ``sync``."""
    _run(arguments, ("trainer.use_v1=true", "trainer.v1.trainer_mode=sync"))


def _run(arguments: Sequence[str] | None, forced: Sequence[str]) -> NoReturn:
    from verlift.main import report

    given = _parser().parse_args(list(sys.argv[1:] if arguments is None else arguments))
    try:
        _train(given, forced)
    except Exception as error:
        sys.exit(report(error))
    sys.exit(0)


def _train(given: argparse.Namespace, forced: Sequence[str]) -> None:
    from verlift.options import read_config
    from verlift.train import train_with

    path = given.config_path or given.config_dir
    ours = path is None or Path(path).as_posix() in _OUR_CONFIGS
    config = read_config(
        given.config_name.removesuffix(".yaml"), None if ours else Path(path), [*given.overrides, *forced]
    )
    if given.cfg is None:
        train_with(config)
    else:
        from omegaconf import OmegaConf

        print(OmegaConf.to_yaml(config, resolve=given.resolve))


def _parser() -> argparse.ArgumentParser:
    """The options of a hydra app that an old command may have."""
    parser = argparse.ArgumentParser(prog="main_ppo", description="Train with verl's configs and keys.")
    parser.add_argument("--config-name", "-cn", default="ppo_trainer", help="the config's file, without its folder")
    parser.add_argument("--config-path", "-cp", help="the config's folder, where it is not verl's own")
    parser.add_argument("--config-dir", "-cd", help="the same as --config-path")
    parser.add_argument("--cfg", "-c", choices=["job", "all"], help="print the config instead of training")
    parser.add_argument("--resolve", action="store_true", help="with --cfg: resolve interpolations")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides in hydra's syntax")
    return parser
