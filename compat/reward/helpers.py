"""Loading and calling reward managers as old recipes do (``verl.trainer.ppo.reward`` of verl 0.2 to 0.9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from compat.protocol import DataProto
from compat.reward.adapters import batch_manager, call, response_manager
from compat.reward.loops import run_all
from compat.reward.managers import Reward, rewards_there
from compat.reward.registry import get_reward_manager_cls
from compat.reward.response_managers import call_on_rows
from compat.reward.rows import columns_of_infos, items_of, outcome_tensor
from runtime.errors import ConfigError
from runtime.reward import BatchRewardManager, RewardManager, default_compute_score, load_compute_score
from runtime.reward.registry import BUILT_IN, configured_class, construct


def get_custom_reward_fn(config: DictConfig) -> Callable[..., Any] | None:
    """The function that ``reward.custom_reward_function`` names, or the old ``custom_reward_function``; else ``None``.

    Raises RewardError naming file and function where it cannot be had.
    """
    for group in ("reward.custom_reward_function", "custom_reward_function"):
        settings = _dict(config, group)
        if settings.get("path"):
            return load_compute_score(
                settings["path"], settings.get("name") or "compute_score", settings.get("reward_kwargs")
            )
    return None


def resolve_reward_manager_cls(config: DictConfig) -> type:
    """The manager's class, by ``reward.reward_manager`` or the old ``reward_model.reward_manager``, a name.

    Of a built-in name, the one that is called on a batch. Raises ConfigError for a name that is not known.
    """
    settings = OmegaConf.select(config, "reward.reward_manager")
    if settings is None:
        return get_reward_manager_cls(OmegaConf.select(config, "reward_model.reward_manager") or "naive")
    chosen = configured_class(config)
    return get_reward_manager_cls(settings.name) if chosen in BUILT_IN.values() else chosen


def load_reward_manager(config: DictConfig, tokenizer: Any, num_examine: int = 0, **reward_kwargs: Any) -> Any:
    """The configured manager, of either kind, as an object to be called on a padded batch.

    ``manager(data, return_dict=False)`` gives ``reward_tensor`` float32 ``[B, R]``, or a dict of that and
    ``reward_extra_info``. num_examine: responses of each data source that it prints. reward_kwargs: arguments of the
    manager, over those in ``reward.reward_kwargs`` (in old configs ``reward_model.reward_kwargs``).

    Raises ConfigError for a manager that is not known or does not take these arguments.
    """
    # A file of a reward function may register the manager that the config names.
    compute_score = get_custom_reward_fn(config) or default_compute_score
    manager_class = resolve_reward_manager_cls(config)
    held = _dict(config, "reward.reward_kwargs") or _dict(config, "reward_model.reward_kwargs")
    more = {**held, **reward_kwargs}
    if issubclass(manager_class, BatchRewardManager):
        raise ConfigError(
            f"reward manager {manager_class.__qualname__} scores packed batches of a trainer; one that is called on a "
            "DataProto defines __call__(data, return_dict=False)"
        )
    if issubclass(manager_class, RewardManager):
        return CallableManager(construct(manager_class, more, tokenizer, compute_score, _reward_fn_key(config)))
    if hasattr(manager_class, "run_single"):
        manager = response_manager(manager_class, config, tokenizer, compute_score, more)
        return manager if callable(manager) else CallableManager(manager)
    return batch_manager(manager_class, config, tokenizer, compute_score, num_examine, more)


class CallableManager:
    """A manager of one response, ours or a recipe's, called on a padded batch row by row."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager

    def __getattr__(self, name: str) -> Any:
        # Before __init__, when unpickling, there is none to look into.
        if name == "manager":
            raise AttributeError(name)
        return getattr(self.manager, name)

    def __call__(self, data: DataProto, return_dict: bool = False) -> Reward:
        """Score each row, unless the batch has ``rm_scores``."""
        there = rewards_there(data, return_dict)
        if there is not None:
            return there
        if not isinstance(self.manager, RewardManager):
            return call_on_rows(self.manager, data, return_dict)
        results = run_all([self.manager.run_single(item) for item in items_of(data)])
        tensor = outcome_tensor(data, [result.reward_score for result in results])
        infos = columns_of_infos([result.reward_extra_info for result in results])
        return {"reward_tensor": tensor, "reward_extra_info": infos} if return_dict else tensor


def compute_reward(data: DataProto, reward_fn: Callable[..., Any]) -> tuple[Tensor, dict[str, Any]]:
    """``reward_fn(data)`` as ``reward_tensor`` ``[B, R]`` and ``reward_extra_info``, ``{}`` where it has none."""
    return call(reward_fn, data)


@ray.remote(num_cpus=1)
def compute_reward_async(
    data: DataProto,
    config: DictConfig | None = None,
    tokenizer: Any = None,
    reward_fn: Callable[..., Any] | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """``compute_reward`` in a Ray task, by ``reward_fn`` or the manager that ``config`` names."""
    if reward_fn is None:
        if config is None or tokenizer is None:
            raise ConfigError("compute_reward_async needs reward_fn, or config and tokenizer to build one")
        reward_fn = load_reward_manager(config, tokenizer)
    return compute_reward(data, reward_fn)


def extract_reward(batch: DataProto) -> tuple[Tensor, dict[str, Any]]:
    """``rm_scores`` of a scored batch, and the columns that ``meta_info["reward_extra_keys"]`` names."""
    keys = batch.meta_info.get("reward_extra_keys", [])
    return batch.batch["rm_scores"], {key: batch.non_tensor_batch[key] for key in keys}  # type: ignore[index]


def _reward_fn_key(config: DictConfig) -> str:
    return OmegaConf.select(config, "data.reward_fn_key") or "data_source"


def _dict(config: DictConfig, key: str) -> dict[str, Any]:
    value = OmegaConf.select(config, key)
    plain: Any = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    return dict(plain) if isinstance(plain, Mapping) else {}
