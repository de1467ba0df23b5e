"""``load_config``: from a name and overrides to a config in which every key is accounted for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runtime.config.composing import MAIN_CONFIG, available_keys, compose_config, config_folder, main_config
from runtime.config.conversions import CONVERSIONS, Conversion
from runtime.config.flat import raw_leaves
from runtime.config.foreign import ForeignKeys, is_known, refuse_unknown
from runtime.config.notes import ConfigNote
from runtime.config.overrides import ParsedOverride, parse_overrides
from runtime.config.tables import CONFIG_DIR, present_name
from runtime.config.types import settle_types
from runtime.config.validate import validate
from runtime.errors import ConfigError
from runtime.recipe import import_modules, settle_modules


@dataclass(frozen=True)
class LoadedConfig:
    """A config that was read and checked.

    config: read-only and closed to new keys; interpolations resolve when read.
    notes: what the user should know about keys that were moved, have no effect, or were passed on unread.
    """

    config: DictConfig
    notes: tuple[ConfigNote, ...]


def load_config(
    config_name: str = MAIN_CONFIG,
    overrides: Sequence[str] = (),
    config_path: str | Path | None = None,
    conversions: Sequence[Conversion] = CONVERSIONS,
    config_dirs: Sequence[str | Path] = (),
) -> LoadedConfig:
    """Compose ``config_name`` with verl's override syntax and account for every key in it.

    config_path: folder of the config; None is ours. Ours can be named in the ``defaults`` of any config.
    conversions: the rules for old values; ``OLD_CODE`` for a command that was written for verl.
    config_dirs: folders that configs are looked up in as well, after ``config_path``.

    Raises ``ConfigError`` for a key nobody knows (it names the nearest), a setting that is not built, or a bad value,
    and ``BatchSizeError`` for numbers that do not divide.
    """
    added = [config_folder(path, "--config-dir") for path in config_dirs]
    folder, name = _locate(config_name, config_path, added)
    notes: list[ConfigNote] = []
    parsed = parse_overrides(overrides, {folder, CONFIG_DIR, *added})
    available = available_keys(name, folder, added)
    texts = [text for override in parsed for text in _for_hydra(override, available, notes)]
    config = settle(_composed(name, folder, texts, parsed, added), parsed, notes, conversions=conversions)
    _check_resolves(config, parsed)
    OmegaConf.set_readonly(config, True)
    return LoadedConfig(config, tuple(dict.fromkeys(notes)))


def _composed(
    name: str, folder: Path, texts: list[str], parsed: list[ParsedOverride], added: Sequence[Path]
) -> DictConfig:
    """``compose_config``, whose errors quote the overrides that choose files: hydra names the group alone."""
    try:
        return compose_config(name, folder, texts, added)
    except ConfigError as error:
        groups = ", ".join(repr(override.text) for override in parsed if override.is_group)
        raise ConfigError(f"{error} (overrides of whole groups: {groups})" if groups else str(error)) from error


def settle(
    composed: DictConfig,
    parsed: list[ParsedOverride],
    notes: list[ConfigNote],
    own_keys: bool = False,
    conversions: Sequence[Conversion] = CONVERSIONS,
) -> DictConfig:
    """Account for every key of ``composed``, which is changed in place, complete it with our defaults and check it.

    own_keys: whether a key that nobody knows is a recipe's own, and noted, instead of refused. conversions: the rules
    for old values.
    """
    OmegaConf.set_struct(composed, False)
    ForeignKeys(composed, parsed, notes, own_keys, conversions).settle()
    config = _completed(composed, parsed, notes)
    settle_types(config)
    _settle_forms(config, notes)
    OmegaConf.set_struct(config, True)
    import_modules(config)
    validate(config, notes)
    return config


def _locate(config_name: str, config_path: str | Path | None, added: Sequence[Path]) -> tuple[Path, str]:
    """Folder and name of the main config: the first of the folders that has it, else where it was to be."""
    paths = [folder / config_name.removesuffix(".yaml") for folder in (config_folder(config_path), *added)]
    path = next((path for path in paths if path.with_name(f"{path.name}.yaml").is_file()), paths[0])
    return path.parent, path.name


def _for_hydra(override: ParsedOverride, available: frozenset[str], notes: list[ConfigNote]) -> list[str]:
    """The override as hydra is to get it: as typed, forced in where only we know the key, or not at all."""
    key = override.key
    if override.is_hydra and key != "hydra.searchpath":
        notes.append(ConfigNote(key, "inert", "commands do not run as hydra apps; only hydra.searchpath is used"))
        return []
    if override.adds and key in available and not override.is_group:
        # Added for a version of verl that lacked it: hydra would refuse to add what is there.
        return [override.forced()]
    if override.is_group or override.is_hydra or override.adds or key in available:
        return [override.text]
    if not is_known(key):
        refuse_unknown(key, override.text)
    if override.deletes:
        notes.append(ConfigNote(key, "inert", "there is nothing to delete: verlift's configs do not have this key"))
        return []
    return [override.forced()]


def _completed(composed: DictConfig, parsed: list[ParsedOverride], notes: list[ConfigNote]) -> DictConfig:
    """``composed`` with our default for every key it lacks, so that a trainer never misses one."""
    defaults = raw_leaves(main_config())
    written = raw_leaves(composed)
    missing = [key for key in defaults if written.get(key, "???") == "???" and not _is_filled_group(composed, key)]
    for override in parsed:
        if override.deletes and any(override.covers(key) for key in missing):
            notes.append(ConfigNote(override.key, "default", "deleted, so its default holds"))
    if not missing:
        return composed
    base = main_config().copy()
    OmegaConf.set_struct(base, False)
    return OmegaConf.merge(base, composed)  # type: ignore[return-value]


def _settle_forms(config: DictConfig, notes: list[ConfigNote]) -> None:
    """One form of what may be written in two, so that no reader has to tell them apart."""
    if isinstance(config.trainer.logger, str):
        config.trainer.logger = [config.trainer.logger]
    if config.data.seed is None:
        config.data.seed = config.runtime.seed
    validation = config.actor_rollout_ref.rollout.val_kwargs
    if validation.do_sample and validation.temperature == 0:
        validation.do_sample = False
        message = "set to false: temperature=0 decodes greedily, as in vLLM; to sample, set val_kwargs.temperature"
        notes.append(ConfigNote("actor_rollout_ref.rollout.val_kwargs.do_sample", "warning", message))
    settle_modules(config)


def _check_resolves(config: DictConfig, parsed: list[ParsedOverride]) -> None:
    """Raise ``ConfigError`` naming a key that nobody checked whose interpolation leads nowhere: runs store them all.

    An override that sets it is quoted, under whichever name; so is one that sets its key to ``???``.
    """
    names = {override.text: (override.key, present_name(override.key)) for override in parsed}
    try:
        OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        key, reason = error.full_key, str(error).splitlines()[0]
        set_by = [repr(text) for text, known in names.items() if key in known]
        quoted = f" (set by {', '.join(set_by)})" if set_by else ""
        raise ConfigError(f"config key {key!r}{quoted} cannot be read: {reason}. Change it or leave it out") from error
    missing = OmegaConf.missing_keys(config)
    for text, known in names.items():
        if not missing.isdisjoint(known):
            raise ConfigError(f"{text!r} gives its key no value: ??? stands for one that is yet to be set")


def _is_filled_group(config: DictConfig, key: str) -> bool:
    """Whether ``key``, an empty group by default, has been given keys."""
    try:
        return isinstance(OmegaConf.select(config, key), DictConfig)
    except OmegaConfBaseException:  # an interpolation that leads nowhere, which settle_types tells
        return False
