"""``python -m verl.trainer.main_ppo a.b=c ...`` under ``verlift exec``: an old launch command as it stands.

Its keys, of any version, are read as ``verlift train`` reads them: what was moved, converted or has no effect is told
on the way in; what is not built is refused with a reason.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from omegaconf import DictConfig

_OUR_CONFIGS = ("config", "verl/trainer/config")
"""What ``--config-path`` says where verl's own folder is meant; hydra takes it from where ``main_ppo.py`` lies."""

_NOT_BUILT = {
    "--multirun": "one command is one run: start it once for each of the values",
    "--info": "`--cfg job` prints the config, and docs/config.md says where its keys come from",
    "--hydra-help": "`--help` lists the options that are served",
    "--package": "`--cfg job` prints the whole config",
    "--experimental-rerun": "type the overrides of that run, which lie in its folder's .hydra/overrides.yaml",
    "--shell-completion": "keys are not completed: configs/ppo_trainer.yaml lists them",
}
"""Options of a hydra app that are not served, and what to do instead."""


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

    try:
        given = parse(sys.argv[1:] if arguments is None else arguments)
        _train(given, read(given, forced))
    except Exception as error:
        sys.exit(report(error))
    sys.exit(0)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command and its ``overrides``. Raises ``ConfigError`` for an option that is not served."""
    return _parser().parse_intermixed_args(list(arguments))


def read(given: argparse.Namespace, forced: Sequence[str] = ()) -> DictConfig:
    """The config of a parsed command; its notes go to stderr. Raises ``ConfigError``, ``BatchSizeError``.

    forced: overrides behind those of the command.
    """
    from verlift.options import read_config

    ours = given.config_path is None or Path(given.config_path).as_posix() in _OUR_CONFIGS
    return read_config(
        given.config_name.removesuffix(".yaml"),
        None if ours else Path(given.config_path),
        [*given.overrides, *forced],
        [] if given.config_dir is None else [given.config_dir],
        old_code=True,
    )


def _train(given: argparse.Namespace, config: DictConfig) -> None:
    if given.cfg is None:
        from verlift.train import train_with

        train_with(config)
    else:
        from omegaconf import OmegaConf

        print(OmegaConf.to_yaml(config, resolve=given.resolve))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise ``ConfigError``, the one kind of message of a command that cannot be read."""
        from runtime.errors import ConfigError

        raise ConfigError(f"{self.prog}: {message}; `--help` lists the options, and overrides are written key=value")


class _Refuse(argparse.Action):
    def __call__(self, *given: object) -> NoReturn:
        """Raise ``ConfigError`` with the way out; the last of ``given`` is the option as typed."""
        from runtime.errors import ConfigError

        reason = _NOT_BUILT[self.option_strings[0]]
        raise ConfigError(f"{given[-1]} is an option of hydra that is not served: {reason}")


def _parser() -> argparse.ArgumentParser:
    """The options of a hydra app that an old command may have."""
    parser = _Parser(prog="main_ppo", description="Train with verl's configs and keys.", allow_abbrev=False)
    parser.add_argument("--config-name", "-cn", default="ppo_trainer", help="the config's file, without its folder")
    parser.add_argument("--config-path", "-cp", help="the config's folder, where it is not verl's own")
    parser.add_argument("--config-dir", "-cd", help="one more folder that configs are looked up in")
    parser.add_argument("--cfg", "-c", choices=["job", "all"], help="print the config instead of training")
    parser.add_argument("--resolve", action="store_true", help="with --cfg: resolve interpolations")
    parser.add_argument("--run", "-r", action="store_true", help="train, which is done without it too")
    short = {"--multirun": "-m", "--info": "-i", "--package": "-p", "--shell-completion": "-sc"}
    for option in _NOT_BUILT:
        names = [option, short[option]] if option in short else [option]
        parser.add_argument(*names, action=_Refuse, nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides in hydra's syntax")
    return parser
