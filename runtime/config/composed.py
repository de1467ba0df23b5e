"""Configs that a recipe's own hydra app has composed: read as ``load_config`` reads one, and given back with old names.

A recipe reads keys of the verl version that it was written for, so what it gets holds them beside their present names.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from runtime.config.composing import main_config
from runtime.config.flat import flatten, prefixes, raw_leaves, with_groups
from runtime.config.load import settle
from runtime.config.notes import ConfigNote, format_notes
from runtime.config.old_code import OLD_CODE
from runtime.config.tables import old_defaults, present_name


def settle_config(config: DictConfig, *, use_v1: bool) -> DictConfig:
    """``config`` with every key accounted for, writable, holding old and present names; notes go to stderr.

    Keys of verl that are missing have their defaults. Keys that nobody knows are the recipe's own: they are kept, and
    noted. use_v1: what the trainer that reads the config is, whatever ``trainer.use_v1`` says.

    Raises ``ConfigError`` as ``load_config``.
    """
    given = config.copy()
    OmegaConf.set_readonly(given, False)
    OmegaConf.set_struct(given, False)
    given.pop("hydra", None)
    notes: list[ConfigNote] = []
    _settle_trainer(given, use_v1, notes)
    settled = settle(_without_old_defaults(given), [], notes, own_keys=True, conversions=OLD_CODE)
    if notes:
        print(format_notes(dict.fromkeys(notes)), file=sys.stderr)
    whole: Any = OmegaConf.merge(given, settled)
    add_old_keys(whole)
    OmegaConf.set_struct(whole, True)
    return whole


def _settle_trainer(given: DictConfig, use_v1: bool, notes: list[ConfigNote]) -> None:
    """Let ``trainer.use_v1`` say what the trainer is, and tell who set it, or left it, otherwise."""
    key, asked = "trainer.use_v1", OmegaConf.select(given, "trainer.use_v1")
    if asked is not None and asked != use_v1:
        message = (
            f"is {use_v1} here, not {asked}: the code makes its trainer itself, a RayPPOTrainer, which is the legacy "
            "trainer; main_ppo of verl.trainer makes the one that the key asks for"
        )
        notes.append(ConfigNote(key, "warning", message))
    OmegaConf.update(given, key, use_v1, force_add=True)


def add_old_keys(config: DictConfig) -> None:
    """Give ``config``, in place, every key that verl has or had and it lacks, with verl's last default.

    What was set under an old name is set under the present one too, so that either may be read. A config without
    ``actor_rollout_ref`` is not a trainer's, and left as it is.
    """
    if "actor_rollout_ref" not in config:
        return
    written = raw_leaves(config)
    there = with_groups(written)
    with flag_override(config, ["struct", "readonly"], False):
        for key, value in written.items():
            new = present_name(key)
            if new is not None and value not in (None, {}, _old_keys().get(key)):
                OmegaConf.update(config, new, value, force_add=True)
        for key, value in _old_keys().items():
            closed = any(written.get(group, {}) != {} for group in prefixes(key))
            if key not in there and not closed:
                OmegaConf.update(config, key, value, force_add=True)


@cache
def _old_keys() -> dict[str, Any]:
    """Keys that verl has or had and our configs do not hold, with their last defaults there."""
    ours = with_groups(raw_leaves(main_config()))
    return {key: value for key, value in old_defaults().items() if key not in ours}


def _without_old_defaults(config: DictConfig) -> DictConfig:
    """``config`` without the keys that say only what ``add_old_keys`` adds, as written or resolved."""
    trial, old = config.copy(), _old_keys()
    written = raw_leaves(config)
    as_added = {key for key, value in written.items() if key in old and old[key] == value}
    changed = [key for key in written if key not in as_added and any(name in old for name in (key, *prefixes(key)))]
    # Resolving takes longest, and a config that nobody resolved needs none.
    resolved = _resolved_defaults(config) if changed else {}
    for key in (*as_added, *(key for key in changed if key in resolved and resolved[key] == written[key])):
        _remove(trial, key)
    return trial


def _resolved_defaults(config: DictConfig) -> dict[str, Any]:
    """What the old keys' defaults come to in ``config``: a recipe may have resolved its own."""
    trial, old = config.copy(), _old_keys()
    for key, default in old.items():
        OmegaConf.update(trial, key, default, force_add=True)
    try:
        resolved: Any = OmegaConf.to_container(trial, resolve=True)
    except OmegaConfBaseException:  # an interpolation of the recipe's own that leads nowhere is told by who reads it
        return {}
    # An old key whose default names a group has resolved to the keys of that group; all else is the recipe's own.
    return {key: value for key, value in flatten(resolved) if any(name in old for name in (key, *prefixes(key)))}


def _remove(config: DictConfig, key: str) -> None:
    """Delete ``key`` and every group that it leaves empty."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    del node[name]
    if parent and not node:
        _remove(config, parent)
