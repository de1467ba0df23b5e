"""Config groups as code written for verl reads them, and the core's settings read off such a group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from shared_algos.advantages import AdvantageConfig
from shared_algos.policy_losses import PolicyLossConfig
from shared_algos.rollout_correction import RolloutCorrectionConfig

Settings = TypeVar("Settings", AdvantageConfig, PolicyLossConfig)


class ConfigView(Mapping[str, Any]):
    """A read-only config group: ``config.key``, ``config["key"]``, ``config.get("key", default)``, ``"key" in config``.

    It answers like verl's dataclasses and like a ``DictConfig``: groups inside it are views too, interpolations resolve
    when read, and a key that is not there raises ``AttributeError`` or ``KeyError`` naming it.
    """

    __slots__ = ("_groups",)

    def __init__(self, *groups: Any) -> None:
        """groups: mappings, objects with attributes or ``None``; a key is looked for in the first one first."""
        self._groups = tuple(_as_mapping(group) for group in groups if group is not None)

    def __getitem__(self, key: str) -> Any:
        for group in self._groups:
            if key in group:  # a DictConfig takes a millisecond to raise KeyError
                value = group[key]
                return ConfigView(value) if isinstance(value, Mapping) or _is_settings(value) else value
        raise KeyError(key)

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):  # asked by copy and pickle before there are values
            raise AttributeError(key)
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"the config has no key {key!r}; it has {', '.join(sorted(self))}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key for group in self._groups for key in group))

    def __len__(self) -> int:
        return len(tuple(iter(self)))

    def __contains__(self, key: object) -> bool:
        return any(key in group for group in self._groups)

    def __repr__(self) -> str:
        return f"ConfigView({dict(self)})"


def estimator_view(config: AdvantageConfig) -> ConfigView:
    """What an estimator gets as ``config``: the recipe's ``algorithm`` group, completed by the core's defaults."""
    return ConfigView(config.source, _without_source(config))


def settings_from(group: Any, base: Settings, **changes: Any) -> Settings:
    """``base`` with what ``group`` says otherwise, under verl's names; the losses' are in ``policy_loss`` too.

    group: as for ``ConfigView``. changes: settings that go before those of the group.
    """
    view = ConfigView(group)
    inner = view.get("policy_loss") or {}
    names = [field.name for field in fields(base) if field.name not in ("source", "rollout_correction")]
    found = {name: part[name] for part in (view, inner) for name in names if name in part}
    if isinstance(base, PolicyLossConfig) and (correction := ConfigView(inner).get("rollout_correction")):
        found["rollout_correction"] = correction_from(correction)
    if found.get("gdpo_reward_weights") is not None:
        found["gdpo_reward_weights"] = tuple(found["gdpo_reward_weights"])
    return type(base)(**{**_without_source(base), "source": base.source, **found, **changes})


def correction_from(group: Any) -> RolloutCorrectionConfig:
    """The settings of rollout correction in ``group``; as in verl's functions, weights are off unless it says so."""
    view = ConfigView(group)
    names = [field.name for field in fields(RolloutCorrectionConfig) if view.get(field.name) is not None]
    return RolloutCorrectionConfig(**{name: view[name] for name in names})


def _without_source(config: Any) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(config) if field.name != "source"}


def _as_mapping(group: Any) -> Mapping[str, Any]:
    if isinstance(group, Mapping):
        return group
    if _is_settings(group):
        return {field.name: getattr(group, field.name) for field in fields(group)}
    return vars(group)


def _is_settings(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)
