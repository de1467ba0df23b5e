"""Reward managers by the name that ``reward.reward_manager.name`` gives."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from transformers import PreTrainedTokenizerBase

from runtime.errors import ConfigError
from runtime.reward.functions import load_compute_score
from runtime.reward.managers import NaiveRewardManager, RewardManager
from runtime.user_code import load_object

ManagerClass = TypeVar("ManagerClass", bound=type[RewardManager])

_managers: dict[str, type[RewardManager]] = {"naive": NaiveRewardManager}


def register_reward_manager(name: str) -> Callable[[ManagerClass], ManagerClass]:
    """Class decorator that files a manager under ``name``.

    The same class of the same file again is a no-op, since Ray workers import modules anew; any other class under a
    name that is taken raises ConfigError.
    """

    def file(manager: ManagerClass) -> ManagerClass:
        known = _managers.setdefault(name, manager)
        if known is not manager and _source(known) != _source(manager):
            raise ConfigError(f"reward manager {name!r} is already {known.__qualname__} of {_source(known)[0]}")
        return manager

    return file


def reward_manager_class(name: str) -> type[RewardManager]:
    """The manager filed under ``name``; raises ConfigError listing the names there are."""
    if name not in _managers:
        raise ConfigError(f"reward.reward_manager.name={name!r} is not known; there are {sorted(_managers)}")
    return _managers[name]


def build_reward_manager(
    config: DictConfig, tokenizer: PreTrainedTokenizerBase, locate: Callable[[int], str] = "row {}".format
) -> RewardManager:
    """Build the manager that the whole config asks for.

    Reads ``reward.custom_reward_function.{path,name,reward_kwargs}``, ``data.reward_fn_key``, ``reward.reward_kwargs``
    (more arguments of the manager) and ``reward.reward_manager.source``: ``register`` takes the manager by ``name``,
    ``importlib`` the class ``module.name`` of the file ``module.path``.
    """
    function = config.reward.custom_reward_function
    compute_score = load_compute_score(function.path, function.name, _plain(function.get("reward_kwargs")))
    manager = _configured_class(config.reward.reward_manager)
    more = _plain(config.reward.get("reward_kwargs"))
    try:
        inspect.signature(manager).bind(tokenizer, compute_score, config.data.reward_fn_key, locate, **more)
    except TypeError as error:
        raise ConfigError(f"reward.reward_kwargs={more} does not fit {manager.__qualname__}: {error}") from error
    return manager(tokenizer, compute_score, config.data.reward_fn_key, locate, **more)


def _configured_class(manager: DictConfig) -> type[RewardManager]:
    source = manager.get("source", "register")
    if source == "register":
        return reward_manager_class(manager.name)
    if source == "importlib":
        return load_object(manager.module.path, manager.module.name, ConfigError)
    raise ConfigError(f"reward.reward_manager.source={source!r} is not known: expected 'register' or 'importlib'")


def _plain(config: Any) -> dict[str, Any]:
    return OmegaConf.to_container(config, resolve=True) if config else {}  # type: ignore[return-value]


def _source(manager: type[RewardManager]) -> tuple[str, str]:
    return inspect.getfile(manager), manager.__qualname__
