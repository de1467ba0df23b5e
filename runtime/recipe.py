"""Modules of a recipe, imported for what they register: in the driver before its config is checked, in every worker.

Nothing here knows what is registered: an estimator, a loss, an agent loop, a model class of transformers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from runtime.algorithms import policy_loss_name
from runtime.errors import ConfigError
from runtime.user_code import load_module
from shared_algos.advantages import ADVANTAGES
from shared_algos.policy_losses import POLICY_LOSSES

IMPORT_MODULES = "runtime.import_modules"
KEYS = ("actor_rollout_ref.model.external_lib", "critic.model.external_lib", IMPORT_MODULES)

_OURS = ("shared_algos.", "runtime.")

FROM_ENVIRONMENT = "VERL_USE_EXTERNAL_MODULES"
"""verl's environment variable: modules separated by commas."""


def settle_modules(config: DictConfig) -> None:
    """Make ``KEYS`` lists of module names and absolute files, from null, one name, names with commas, or a list.

    What ``VERL_USE_EXTERNAL_MODULES`` names goes to ``runtime.import_modules``, since workers may not see it.
    """
    for key in KEYS:
        value = OmegaConf.select(config, key)
        names = _names(value.split(",") if isinstance(value, str) else value or ())
        if key == IMPORT_MODULES:
            names += _names(os.environ.get(FROM_ENVIRONMENT, "").split(","))
        OmegaConf.update(config, key, list(dict.fromkeys(names)))


def import_modules(config: DictConfig) -> None:
    """Import what ``KEYS`` name; once imported, a module is left alone.

    Raises ``ConfigError`` naming key and module where it is not found or raises.
    """
    for key in KEYS:
        for name in OmegaConf.select(config, key) or ():
            _import(name, key)


def with_modules_of_algorithms(config: DictConfig) -> DictConfig:
    """``config`` whose ``runtime.import_modules`` name the modules of its estimator, loss and reward manager.

    Modules of our own are left out.

    A driver that imports a recipe itself has them registered; this leads the workers to them. Raises ``ConfigError``
    for a function that lives where no worker can import it.
    """
    # Imports transformers, which takes seconds: only a trainer needs it.
    from runtime.reward.registry import configured_class

    entries = (ADVANTAGES.get(config.algorithm.adv_estimator), POLICY_LOSSES.get(policy_loss_name(config)))
    pieces: list[Callable[..., Any]] = [entry.function for entry in entries]
    if config.reward.reward_manager.source == "register":
        pieces.append(configured_class(config))
    names = [_importable(piece) for piece in pieces if not piece.__module__.startswith(_OURS)]
    named = {name for key in KEYS for name in OmegaConf.select(config, key)}
    new = [name for name in dict.fromkeys(names) if name not in named]
    if not new:
        return config
    changed = OmegaConf.merge(config, {"runtime": {"import_modules": [*config.runtime.import_modules, *new]}})
    OmegaConf.set_readonly(changed, True)
    return changed  # type: ignore[return-value]


def _names(values: Iterable[Any]) -> list[str]:
    names = [str(value).strip() for value in values]
    return [str(_file(name).resolve()) if _is_file(name) else name for name in names if name]


def _is_file(name: str) -> bool:
    return not name.startswith("pkg://") and (name.startswith("file://") or name.endswith(".py") or os.sep in name)


def _file(name: str) -> Path:
    return Path(name.removeprefix("file://")).expanduser()


def _import(name: str, key: str) -> ModuleType:
    dotted = not _is_file(name)
    if dotted and not {"", os.getcwd()} & set(sys.path):
        # `python -m verl...` finds modules in the working directory, a console script does not; last, to hide nothing.
        sys.path.append(os.getcwd())
    try:
        return load_module(f"pkg://{name.removeprefix('pkg://')}" if dotted else name, ConfigError)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error


def _importable(function: Callable[..., Any]) -> str:
    """The name or file by which a worker can import the module of ``function``."""
    module = sys.modules.get(function.__module__)
    spec = getattr(module, "__spec__", None)
    name, file = (spec.name if spec else None), getattr(module, "__file__", None)
    if name and any(finder.find_spec(name.partition(".")[0], None) for finder in sys.meta_path):
        return name
    if file:
        return str(Path(file).resolve())
    where = f"{function.__module__}.{getattr(function, '__qualname__', function)}"
    raise ConfigError(
        f"{where} is defined where no worker can import it; put it into a file and name that in {KEYS[0]}"
    )
