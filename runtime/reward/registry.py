"""Reward managers by the name that ``reward.reward_manager.name`` gives, and what the configured one is."""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from transformers import PreTrainedTokenizerBase

from runtime.errors import ConfigError
from runtime.reward.batch import BatchedFunctionManager, BatchRewardManager
from runtime.reward.dapo import DAPORewardManager
from runtime.reward.functions import load_compute_score
from runtime.reward.lenient import PrimeRewardManager, RateLimitedRewardManager
from runtime.reward.managers import NaiveRewardManager, RewardManager
from runtime.user_code import load_object

logger = logging.getLogger(__name__)

ManagerClass = TypeVar("ManagerClass", bound=type)

BUILT_IN: dict[str, type] = {
    "naive": NaiveRewardManager,
    "dapo": DAPORewardManager,
    "prime": PrimeRewardManager,
    "batch": BatchedFunctionManager,
    "rate_limited": RateLimitedRewardManager,
    # Scores as naive's; verl's differ in where the function runs and in what they leave out of extra_info.
    "gdpo": NaiveRewardManager,
    "remote": NaiveRewardManager,
}

_managers: dict[str, type] = dict(BUILT_IN)

_FOREIGN = "compat.reward.adapters"
"""What calls managers with verl's signatures; imported only for one, since it lies on a floor above."""

_DEFAULT_CLASS_NAME = "custom_reward_manager"


def register_reward_manager(name: str, replace: bool = False) -> Callable[[ManagerClass], ManagerClass]:
    """Class decorator that files a manager under ``name``.

    The same class of the same file again is a no-op, since Ray workers import modules anew; any other class under a
    name that is taken raises ConfigError, unless the name is a built-in one and ``replace`` is set: then the new class
    is taken, with a warning.
    """

    def file(manager: ManagerClass) -> ManagerClass:
        known = _managers.setdefault(name, manager)
        if known is manager or _source(known) == _source(manager):
            return manager
        if not (replace and BUILT_IN.get(name) is known):
            raise ConfigError(f"reward manager {name!r} is already {known.__qualname__} of {_source(known)[0]}")
        logger.warning("reward manager %r is now %s of %s", name, manager.__qualname__, _source(manager)[0])
        _managers[name] = manager
        return manager

    return file


def registered() -> Mapping[str, type]:
    """Every manager by its name."""
    return _managers


def reward_manager_class(name: str) -> type:
    """The manager filed under ``name``; raises ConfigError listing the names there are."""
    if name not in _managers:
        raise ConfigError(f"reward.reward_manager.name={name!r} is not known; there are {sorted(_managers)}")
    return _managers[name]


def configured_class(config: DictConfig) -> type:
    """The class that ``reward.reward_manager`` names: ``source=register`` by ``name``, ``importlib`` from a file.

    verl 0.9 looks ``name`` up in the file, verl before and after it ``module.name``; whichever is set is taken.
    """
    manager = config.reward.reward_manager
    source = manager.get("source", "register")
    if source == "register":
        return reward_manager_class(manager.name)
    if source != "importlib":
        raise ConfigError(f"reward.reward_manager.source={source!r} is not known: expected 'register' or 'importlib'")
    if manager.module.path is None:
        raise ConfigError("reward.reward_manager.source=importlib needs a file in reward.reward_manager.module.path")
    name = manager.module.name
    if name == _DEFAULT_CLASS_NAME and manager.name not in BUILT_IN:
        name = manager.name
    return load_object(manager.module.path, name, ConfigError)


def scores_batches(config: DictConfig) -> bool:
    """Whether the configured manager scores whole batches after rollout, rather than each response within it.

    A class of a recipe is told by what it defines: ``run_single`` for one response, else ``__call__`` for a batch.
    Raises ConfigError for a class that has neither.
    """
    manager = configured_class(config)
    if not isinstance(manager, type):
        raise ConfigError(f"reward manager {manager!r} is {type(manager).__name__}, not a class")
    if issubclass(manager, RewardManager | BatchRewardManager):
        return issubclass(manager, BatchRewardManager)
    if hasattr(manager, "run_single"):
        return False
    if any("__call__" in vars(base) for base in manager.__mro__):
        return True
    raise ConfigError(
        f"reward manager {manager.__qualname__} defines neither run_single(data), for one response, nor "
        "__call__(data, return_dict=False), for a batch"
    )


def build_reward_manager(
    config: DictConfig, tokenizer: PreTrainedTokenizerBase, locate: Callable[[int], str] = "row {}".format
) -> RewardManager | None:
    """Build the manager of responses that the whole config asks for; ``None`` where it scores whole batches.

    Reads ``reward.custom_reward_function.{path,name,reward_kwargs}``, ``data.reward_fn_key``, ``reward.reward_kwargs``
    (more arguments of the manager) and ``reward.reward_manager``.
    """
    compute_score = configured_function(config)
    if scores_batches(config):
        return None
    manager, more = configured_class(config), reward_kwargs(config)
    if not issubclass(manager, RewardManager):
        return importlib.import_module(_FOREIGN).per_response(manager, config, tokenizer, compute_score, more)
    if "max_resp_len" in inspect.signature(manager).parameters:
        more.setdefault("max_resp_len", config.data.max_response_length)
    return construct(manager, more, tokenizer, compute_score, config.data.reward_fn_key, locate)


def build_batch_manager(config: DictConfig, tokenizer: PreTrainedTokenizerBase) -> BatchRewardManager:
    """Build the manager of whole batches that the config asks for; see :func:`build_reward_manager`."""
    compute_score = configured_function(config)
    manager, more = configured_class(config), reward_kwargs(config)
    if not issubclass(manager, BatchRewardManager):
        return importlib.import_module(_FOREIGN).per_batch(manager, config, tokenizer, compute_score, more)
    return construct(manager, more, tokenizer, compute_score, config.data.reward_fn_key)


def configured_function(config: DictConfig) -> Callable[..., Any]:
    """``reward.custom_reward_function``, or the built-in routing."""
    function = config.reward.custom_reward_function
    return load_compute_score(function.path, function.name, _as_dict(function.get("reward_kwargs")))


def reward_kwargs(config: DictConfig) -> dict[str, Any]:
    """``reward.reward_kwargs``: further arguments of the manager."""
    return _as_dict(config.reward.get("reward_kwargs"))


def construct(manager: type, more: dict[str, Any], *arguments: Any, **keywords: Any) -> Any:
    """``manager(*arguments, **keywords, **more)``; ConfigError where ``more`` does not fit its signature."""
    try:
        inspect.signature(manager).bind(*arguments, **keywords, **more)
    except TypeError as error:
        raise ConfigError(f"reward.reward_kwargs={more} does not fit {manager.__qualname__}: {error}") from error
    return manager(*arguments, **keywords, **more)


def _as_dict(config: Any) -> dict[str, Any]:
    return OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else dict(config or {})  # type: ignore[return-value]


def _source(manager: type) -> tuple[str, str]:
    return inspect.getfile(manager), manager.__qualname__
