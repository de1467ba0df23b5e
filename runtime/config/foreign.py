"""Keys that our configs do not hold: moved to their present name, reported, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from typing import Any, NoReturn

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runtime.config.composing import main_config
from runtime.config.conversions import CONVERSIONS, Conversion, is_converted
from runtime.config.flat import prefixes, raw_leaves, with_groups
from runtime.config.nearest import nearest_key
from runtime.config.notes import ConfigNote
from runtime.config.overrides import ParsedOverride
from runtime.config.tables import KnownKey, known_key, old_defaults, present_name, verl_defaults
from runtime.errors import ConfigError

LIKELY_TYPO = 0.85
"""Likeness from which an added key is suspected to be a slip; ``entropy_coef`` for ``entropy_coeff`` has 0.97."""


def refuse_unknown(key: str, override: str | None = None) -> NoReturn:
    """Raise the ``ConfigError`` of a key nobody knows, naming the nearest known one."""
    near, _ = nearest_key(key, _candidates())
    if override and override.startswith("~"):
        raise ConfigError(f"there is no config key {key!r} to delete ({override!r}); the nearest known key is {near!r}")
    origin = f" (override {override!r})" if override else ""
    raise ConfigError(
        f"unknown config key {key!r}{origin}; the nearest known key is {near!r}. "
        f"If code of your own reads {key!r}, pass it on the command line as +{key}=..."
    )


def is_known(key: str) -> bool:
    """Whether a key that our configs do not hold, or a group of such keys, is one we can speak of."""
    known = present_name(key) is not None or known_key(key) is not None
    return known or is_converted(key) or key in _known_groups()


@cache
def _held() -> tuple[dict[str, Any], frozenset[str]]:
    """The keys of our configs with their defaults, and the groups that they lie in."""
    leaves = raw_leaves(main_config())
    return leaves, with_groups(leaves)


@cache
def _candidates() -> frozenset[str]:
    return frozenset(_held()[0]) | frozenset(verl_defaults())


@cache
def _known_groups() -> frozenset[str]:
    return with_groups(_candidates())


def _assignments(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in values.items())


def _written_null(value: Any) -> bool:
    """Whether a leaf says nothing: verl's old reward groups hold nulls and ``???``, and an empty group holds no key."""
    return value is None or value in ({}, "???")


class ForeignKeys:
    """The keys of a composed config that ours does not hold, settled one by one.

    composed: changed in place (old names move). parsed: the overrides, which make a key explicit. notes: appended to.
    own_keys: whether a key that nobody knows is passed on with a note, as one that ``+`` adds is. conversions: the
    rules for old values.
    """

    def __init__(
        self,
        composed: DictConfig,
        parsed: list[ParsedOverride],
        notes: list[ConfigNote],
        own_keys: bool = False,
        conversions: Sequence[Conversion] = CONVERSIONS,
    ) -> None:
        self.composed = composed
        self.parsed = parsed
        self.notes = notes
        self.own_keys = own_keys
        self.conversions = conversions
        self.converted: set[str] = set()
        self.defaults, self.groups = _held()

    def settle(self) -> None:
        """Account for every foreign key. Raises ``ConfigError`` at the first that is unknown or not built."""
        leaves = raw_leaves(self.composed)
        for conversion in self.conversions:
            self._convert(conversion, leaves)
        for key, value in raw_leaves(self.composed).items():
            if key not in self.defaults and key not in self.groups:
                self._settle_key(key, value)

    def _convert(self, conversion: Conversion, leaves: dict[str, Any]) -> None:
        """Apply one rule to the values that ``leaves``, the config as it came, has for its keys."""
        old = self._values(conversion.keys, leaves)
        new = conversion.convert({**old, **self._values(conversion.beside, leaves)}) if old else None
        if new is None:
            return
        for key in old.keys() - new.keys():
            self._remove(key)
        for key, value in new.items():
            if key not in old:
                self._check_agreement(next(iter(old)), key, value)
            OmegaConf.update(self.composed, key, value, force_add=True)
        self.converted |= new.keys()
        changed = {key: value for key, value in old.items() if key not in new or new[key] != value}
        became = {key: value for key, value in new.items() if key not in old or old[key] != value}
        message = f"{_assignments(changed)} became {_assignments(became) or 'nothing'}: {conversion.reason}"
        self.notes.append(ConfigNote(next(iter(changed)), "converted", message))

    def _values(self, keys: Iterable[str], leaves: dict[str, Any]) -> dict[str, Any]:
        return {key: self._resolved(key, leaves[key]) for key in keys if key in leaves}

    def _resolved(self, key: str, written: Any) -> Any:
        """The value of a leaf, or how it is written where it cannot be read: who judges the key will tell."""
        if not isinstance(written, str):
            return written
        try:
            return OmegaConf.select(self.composed, key)
        except OmegaConfBaseException:
            return written

    def _settle_key(self, key: str, value: Any) -> None:
        new = present_name(key)
        if new is not None:
            self._move(key, new, value)
        elif (row := known_key(key)) is not None:
            self._settle_known(key, value, row)
        elif self.own_keys or any(override.adds and override.covers(key) for override in self.parsed):
            self.notes.append(ConfigNote(key, "free", self._added_message(key)))
        elif not (_written_null(value) and key in _known_groups()):
            refuse_unknown(key)

    def _move(self, old: str, new: str, value: Any) -> None:
        """Give the value of an old name to the present one, and judge it there."""
        self._remove(old)
        if _written_null(value):
            return
        self._check_agreement(old, new, value)
        OmegaConf.update(self.composed, new, value, force_add=True)
        self.notes.append(ConfigNote(old, "moved", f"is {new} now, and was set there"))
        if new not in self.defaults:
            self._settle_key(new, value)

    def _check_agreement(self, old: str, new: str, value: Any) -> None:
        """Raise ``ConfigError`` where the key ``new``, which ``old`` is to set to ``value``, was set to another."""
        current = raw_leaves(self.composed).get(new)
        if current not in (None, {}, value, self.defaults.get(new), *verl_defaults().get(new, ())):
            raise ConfigError(
                f"{old} sets {new} to {value!r}, and {new}={current!r} is set too: they disagree; leave {old} out"
            )

    def _settle_known(self, key: str, value: Any, row: KnownKey) -> None:
        at_default = self._is_default(key, value)
        if row.status == "unsupported" and not at_default:
            raise ConfigError(f"{key}={value!r} is not supported: {row.reason}")
        explicit = key not in self.converted and any(override.covers(key) for override in self.parsed)
        if explicit or not at_default:
            self.notes.append(ConfigNote(key, "free" if row.status == "free" else "inert", row.reason))

    def _is_default(self, key: str, value: Any) -> bool:
        """Whether ``value`` is what verl 0.9.0, 0.10.dev or the last version with the key has, written or resolved."""
        defaults = verl_defaults().get(key) or tuple(old_defaults()[name] for name in (key,) if name in old_defaults())
        if value in defaults:
            return True
        interpolated = [default for default in defaults if "${" in f"{value}{default}"]
        return any(self._resolves_alike(key, default) for default in interpolated)

    def _resolves_alike(self, key: str, default: Any) -> bool:
        """Whether the config's value and ``default`` are equal after interpolation at that place."""
        trial = self.composed.copy()
        try:
            value = deepcopy(OmegaConf.select(trial, key))  # the update changes a list where it is
            OmegaConf.update(trial, key, default, force_add=True)
            return bool(value == OmegaConf.select(trial, key))
        except OmegaConfBaseException:
            return False

    def _added_message(self, key: str) -> str:
        near, likeness = nearest_key(key, _candidates())
        hint = f"; did you mean {near}?" if likeness >= LIKELY_TYPO else ""
        return f"added by you; nothing built in reads it{hint}"

    def _remove(self, key: str) -> None:
        parent, _, name = key.rpartition(".")
        node = OmegaConf.select(self.composed, parent) if parent else self.composed
        del node[name]  # pop would read the value, which may lead nowhere
        if not node and next(prefixes(key), None) and parent:
            self._remove(parent)
