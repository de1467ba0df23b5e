"""Config groups as the dataclasses that verl makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf

from compat.configs.classes import CLASS_OF_KEY, MADE
from compat.configs.groups import Group
from compat.ppo.errors import BadSettingError

CLASS_OF_GROUP: dict[str, str] = {
    "algorithm": "AlgoConfig",
    "actor_rollout_ref.actor": "FSDPActorConfig",
    "actor_rollout_ref.ref": "FSDPActorConfig",
    "actor_rollout_ref.model": "HFModelConfig",
    "actor_rollout_ref.rollout": "RolloutConfig",
    "critic": "FSDPCriticConfig",
    "critic.model": "FSDPCriticModelCfg",
    "reward": "RewardConfig",
}
"""The class of a group by its place in the config, where its key alone does not tell."""


def omega_conf_to_dataclass(config: Any, dataclass_type: type[Any] | None = None) -> Any:
    """A config group as a ``dataclass_type``, or as the class that its ``_target_`` or its place in the config names.

    Interpolations resolve. Keys that the class does not have stay on the object where the class is one of verl's.
    An empty group gives ``dataclass_type()`` (``None`` without one), anything that is no group is returned as it is.

    Raises ``BadSettingError`` (an ``AssertionError`` and ``ValueError``, as in verl) where no class is known, or
    ``dataclass_type`` is no dataclass.
    """
    if not config:
        return dataclass_type if dataclass_type is None else dataclass_type()
    if not isinstance(config, DictConfig | ListConfig | dict | list):
        return config
    place = _place(config)
    values = OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else config
    if dataclass_type is not None:
        if not is_dataclass(dataclass_type):
            raise BadSettingError(
                f"{dataclass_type} is no dataclass; give one, such as verl.workers.config.ActorConfig"
            )
        return _built(dataclass_type, values)
    target = values.get("_target_") if isinstance(values, dict) else None
    if target:
        made = MADE.get(target.rpartition(".")[2]) if target.startswith("verl.") else None
        return _built(made, values) if made else instantiate(values, _convert_="partial")
    name = CLASS_OF_GROUP.get(place) or CLASS_OF_KEY.get(place.rpartition(".")[2])
    if name is None:
        raise BadSettingError(
            f"config group {place or values!r} has no _target_, and its place names no class; "
            "pass dataclass_type to omega_conf_to_dataclass"
        )
    return _built(MADE[name], values)


def update_dict_with_config(dictionary: dict[str, Any], config: Any) -> None:
    """Give each key of ``dictionary`` the value that ``config`` has under that name, if it has one."""
    for key in dictionary:
        if hasattr(config, key):
            dictionary[key] = getattr(config, key)


def _place(config: Any) -> str:
    """The dotted key of a group in the config that it is a part of, empty for a root or a plain dict."""
    return config._get_full_key("") if OmegaConf.is_config(config) else ""


def _built(kind: type[Any], values: Any) -> Any:
    """A ``kind`` with the groups inside it as dataclasses too."""
    names = {field.name: field for field in fields(kind)}
    known: dict[str, Any] = {}
    more: dict[str, Any] = {}
    for key, value in values.items():
        made = _class_of(kind, key)
        built = _built(made, value) if made is not None and isinstance(value, Mapping) else value
        (known if key in names else more)[key] = built
    if issubclass(kind, Group):
        return kind.of(known, more)
    if more:
        raise BadSettingError(f"{kind.__name__} has no {sorted(more)}; it has {sorted(names)}")
    return kind(**known)


def _class_of(kind: type[Any], key: str) -> type[Any] | None:
    """The class of a group by its key; a field of a recipe's own class may say another in its annotation."""
    annotated = next((field.type for field in fields(kind) if field.name == key), None)
    if is_dataclass(annotated):
        return annotated if isinstance(annotated, type) else None
    return MADE.get(CLASS_OF_KEY.get(key, ""))
