"""The type of each key, read off its default."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runtime.config.composing import main_config
from runtime.config.flat import raw_leaves, with_groups
from runtime.errors import ConfigError

MODULES = ("actor_rollout_ref.model.external_lib", "critic.model.external_lib")

ONE_OR_MANY = {"data.train_files", "data.val_files", "trainer.logger", *MODULES}
"""One value or a list of them."""

NUMBER_OR_TEXT = {"algorithm.rollout_correction.rollout_is_threshold"}
"""A number, or text such as ``0.5_5.0``."""

TYPE_OF_NULL: dict[str, Any] = {
    "actor_rollout_ref.actor.loss_scale_factor": 1.0,
    "actor_rollout_ref.actor.policy_loss.dro_beta": 1.0,
    "critic.loss_scale_factor": 1.0,
    "actor_rollout_ref.model.tokenizer_path": "",
    "algorithm.filter_groups.metric": "",
    "algorithm.gdpo_reward_keys": ListConfig([]),
    "algorithm.gdpo_reward_weights": ListConfig([]),
    "algorithm.rollout_correction.rollout_is": "",
    "algorithm.rollout_correction.rollout_rs": "",
    "data.custom_cls.path": "",
    "data.custom_cls.name": "",
    "data.sampler.class_path": "",
    "data.sampler.class_name": "",
    **dict.fromkeys(MODULES, ""),
    "data.seed": 0,
    "reward.custom_reward_function.path": "",
    "reward.reward_manager.module.path": "",
    "trainer.resume_from_path": "",
}
"""A value of the type of each key whose default is null. Counts that may be null are in ``validate.POSITIVE``."""

MAY_BE_NULL = {
    "actor_rollout_ref.actor.clip_ratio_low",
    "actor_rollout_ref.actor.clip_ratio_high",
    "actor_rollout_ref.actor.optim.override_optimizer_config",
    "critic.optim.override_optimizer_config",
    "data.val_files",
    "ray_kwargs.ray_init.num_cpus",
}
"""Keys that may be null though their default is not (where the default is null, null is always good)."""


def read_key(config: DictConfig, key: str) -> Any:
    """The resolved value of ``key``. Raises ``ConfigError`` naming the key when it is not set or cannot be resolved."""
    try:
        value = OmegaConf.select(config, key, throw_on_missing=True)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"config key {key!r} cannot be read: {reason}. Set it with {key}=...") from error
    return value


def settle_types(config: DictConfig) -> None:
    """Check every key that we hold against the type of its default; a bare number where text is due becomes text.

    Raises ``ConfigError`` naming the key, the value and the type.
    """
    held = raw_leaves(main_config())
    for group in sorted(with_groups(held) - set(held)):
        value = read_key(config, group)
        if not isinstance(value, DictConfig):
            inside = next(key for key in held if key.startswith(f"{group}."))
            raise ConfigError(
                f"config key {group!r} is a group of keys, not {value!r}; set one of them, such as {inside}"
            )
    for key, written in held.items():
        value, default = read_key(config, key), _typed_defaults()[key]
        if isinstance(default, str) and isinstance(value, int | float) and not isinstance(value, bool):
            OmegaConf.update(config, key, str(value))
        elif not _fits(key, value, default):
            wanted = _name(default)
            raise ConfigError(f"config key {key!r} must be {wanted}, got {value!r} (its default is {written!r})")


@cache
def _typed_defaults() -> dict[str, Any]:
    """A value of the type of each key: its resolved default, or where that is null the one in ``TYPE_OF_NULL``."""
    defaults = {key: read_key(main_config(), key) for key in raw_leaves(main_config())}
    return {key: TYPE_OF_NULL.get(key) if value is None else value for key, value in defaults.items()}


def _fits(key: str, value: Any, default: Any) -> bool:
    if default is None:
        return True
    if value is None:
        return key in MAY_BE_NULL or key in TYPE_OF_NULL
    if key in ONE_OR_MANY:
        return isinstance(value, str | ListConfig)
    if key in NUMBER_OR_TEXT and isinstance(value, str):
        return True
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, int | float)
    if isinstance(default, Mapping):
        return isinstance(value, Mapping)
    return isinstance(value, type(default))


def _name(default: Any) -> str:
    names = {bool: "true or false", int: "an integer", float: "a number", str: "text", ListConfig: "a list"}
    return names.get(type(default), "a group of keys")
