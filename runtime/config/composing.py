"""Hydra's composition, in process, with every failure as a ``ConfigError``."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from runtime.config.flat import raw_leaves, with_groups
from runtime.config.tables import CONFIG_DIR
from runtime.errors import ConfigError

MAIN_CONFIG = "ppo_trainer"
NOT_BUILT = {
    "ppo_megatron_trainer": "the Megatron engine is not built; use ppo_trainer",
    "sft_trainer": "supervised fine-tuning is not built",
}
"""Configs of verl that ours do not stand for."""


_added_folders: ContextVar[Sequence[Path]] = ContextVar("_added_folders", default=())
"""What ``--config-dir`` adds to the search path of the composition that is going on."""


class VerliftSearchPath(SearchPathPlugin):
    """Puts added folders and our configs behind the user's: ``defaults: [ppo_trainer]`` works from any folder."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in (*_added_folders.get(), CONFIG_DIR):
            search_path.append(provider="verlift", path=folder.as_uri())


def config_folder(config_path: str | Path | None, option: str = "--config-path") -> Path:
    """The folder that ``option`` means: relative to the working directory, ours when it is None."""
    folder = CONFIG_DIR if config_path is None else Path(config_path).expanduser().resolve()
    if not folder.is_dir():
        raise ConfigError(f"{option} {config_path}: there is no folder {folder}")
    return folder


def compose_config(
    name: str, folder: Path, overrides: Sequence[str] = (), added_folders: Sequence[Path] = ()
) -> DictConfig:
    """Compose ``folder/name.yaml``, ``added_folders`` and our configs being on the search path too.

    Raises ``ConfigError`` when there is no such file, it cannot be parsed, or an override does not apply.
    """
    if not (folder / f"{name}.yaml").is_file():
        reason = f": {NOT_BUILT[name]}" if name in NOT_BUILT else f" in {folder}; there is {_listing(folder)}"
        raise ConfigError(f"there is no config {name!r}{reason}")
    Plugins.instance().register(VerliftSearchPath)
    added = _added_folders.set(added_folders)
    try:
        with warnings.catch_warnings(), _beside_an_app(), initialize_config_dir(str(folder), version_base=None):
            # An entry of hydra.searchpath that is not installed (verl's own folder, say) is no fault: ours follows.
            warnings.filterwarnings("ignore", message=r"provider=hydra\.searchpath")
            logging.getLogger("hydra").setLevel(logging.ERROR)
            return compose(name, list(overrides))
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError, TypeError) as error:  # hydra raises all five
        raise ConfigError(f"config {name!r} cannot be composed: {_reason(error)}") from error
    finally:
        _added_folders.reset(added)


@contextmanager
def _beside_an_app() -> Iterator[None]:
    """Hydra composes for one caller at a time: the app of a recipe that we run in, if any, is set aside meanwhile."""
    app = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = app


@cache
def main_config() -> DictConfig:
    """Our ``ppo_trainer`` without overrides: every key that the trainers read, with its default."""
    return compose_config(MAIN_CONFIG, CONFIG_DIR)


def available_keys(name: str, folder: Path, added_folders: Sequence[Path] = ()) -> frozenset[str]:
    """Keys and groups of ``folder/name.yaml`` before any override: those that hydra can change or delete."""
    if folder == CONFIG_DIR:
        return _our_keys(name)
    return with_groups(raw_leaves(compose_config(name, folder, added_folders=added_folders)))


@cache
def _our_keys(name: str) -> frozenset[str]:
    return with_groups(raw_leaves(compose_config(name, CONFIG_DIR)))


def _listing(folder: Path) -> str:
    names: Iterable[str] = sorted(path.stem for path in folder.glob("*.yaml"))
    return ", ".join(names) or "none"


def _reason(error: Exception) -> str:
    """Hydra's message on one line, without its search path."""
    lines = (line.strip() for line in str(error).partition("Config search path")[0].splitlines())
    return " ".join(line.replace("':", "' is:") for line in lines if line)
