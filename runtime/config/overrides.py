"""Command-line overrides in hydra's syntax: ``a.b=c``, ``+a.b=c``, ``++a.b=c``, ``~a.b``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from runtime.config.flat import prefixes
from runtime.errors import ConfigError


@dataclass(frozen=True)
class ParsedOverride:
    """One override: ``text`` as typed, its dotted ``key``, and what it does."""

    text: str
    key: str
    is_group: bool
    """It chooses a file of a config group, as in ``model_engine=dp``."""
    deletes: bool
    adds: bool
    """It starts with ``+`` or ``++``: the key need not be known."""

    @property
    def is_hydra(self) -> bool:
        """It speaks to hydra itself."""
        return self.key == "hydra" or self.key.startswith(("hydra.", "hydra/"))

    def forced(self) -> str:
        """The same override as one that may add the key."""
        return "++" + self.text.lstrip("+")

    def covers(self, key: str) -> bool:
        """Whether it sets ``key``, by name or as part of a group."""
        return self.key == key or self.key in prefixes(key)


def parse_overrides(texts: Iterable[str], config_dirs: Iterable[Path]) -> list[ParsedOverride]:
    """Parse overrides; ``config_dirs`` are the folders that config groups are looked up in.

    Raises ``ConfigError`` that quotes the override which is not in hydra's syntax, or is a sweep.
    """
    parser = OverridesParser.create()
    dirs = list(config_dirs)
    return [_parse(parser, text, dirs) for text in texts]


_NUMBER = r"[\d.]+(?:[eE][+-]?\d+)?"
_TWO_BOUNDS = re.compile(rf"(\+{{0,2}}[\w.]*_threshold)=({_NUMBER}_{_NUMBER})")


def _parse(parser: OverridesParser, text: str, config_dirs: list[Path]) -> ParsedOverride:
    # hydra reads the two bounds 0.5_2 as the number 0.52.
    text = _TWO_BOUNDS.sub(r"\1='\2'", text) if _TWO_BOUNDS.fullmatch(text) else text
    try:
        override = parser.parse_override(text)
        value = override.value()
    except HydraException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"cannot read the override {text!r}: {reason}. Write key=value, +key=value or ~key"
        ) from error
    if override.is_sweep_override():
        raise ConfigError(
            f"the override {text!r} lists several values, and one run takes one; for a list write key=[a,b]"
        )
    is_group = not isinstance(value, dict) and _names_group(override, config_dirs)
    if is_group and not _chooses_files(override, value):
        group, verb = override.key_or_group, "deletes" if override.is_delete() else "sets"
        raise ConfigError(
            f"the override {text!r} {verb} the whole group {group!r}; {verb.removesuffix('s')} a key in it, such as "
            f"{group}.name=..."
        )
    return ParsedOverride(
        text=text,
        key=override.key_or_group,
        is_group=is_group,
        deletes=override.is_delete(),
        adds=override.type in (OverrideType.ADD, OverrideType.FORCE_ADD),
    )


def _chooses_files(override: Override, value: object) -> bool:
    """Whether an override of a group names files of it; one that deletes may name the one that is chosen, or none."""
    if override.is_delete():
        return value is None or isinstance(value, str)
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(name, str) for name in value))


def _names_group(override: Override, config_dirs: list[Path]) -> bool:
    key = override.key_or_group
    if override.package is not None or "/" in key:
        return True
    return "." not in key and any((folder / key).is_dir() for folder in config_dirs)
