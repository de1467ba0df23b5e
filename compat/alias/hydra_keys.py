"""Overrides of a recipe's hydra app that name a key of verl which our configs do not hold."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

_KEY = re.compile(r"\+?(?P<key>\w+(?:\.\w+)+)=")


def force_verl_keys(overrides: Sequence[str]) -> list[str]:
    """``a.b=c`` and ``+a.b=c`` become ``++a.b=c`` where ``a.b`` is a key of verl, of any version; all else stays.

    Hydra refuses to set a key that a config lacks, and to add one that it has. One of verl's keys is right in an old command, and what became of
    it is told where the config is read.

    >>> force_verl_keys(["actor_rollout_ref.actor.use_kl_loss=True", "trainer.my_key=1", "~data.seed"])
    ['++actor_rollout_ref.actor.use_kl_loss=True', 'trainer.my_key=1', '~data.seed']
    """
    return [f"++{override.removeprefix('+')}" if _is_verl_key(override) else override for override in overrides]


def _is_verl_key(override: str) -> bool:
    found = _KEY.match(override)
    if found is None:
        return False
    from runtime.config.flat import with_groups
    from runtime.config.tables import known_key, present_name, verl_defaults

    key = found["key"]
    return key in with_groups(verl_defaults()) or present_name(key) is not None or known_key(key) is not None


def accept_verl_keys(config_loader: Any) -> None:
    """Let hydra's ``config_loader`` class read overrides through :func:`force_verl_keys`, once.

    A config of ours then also has the keys that other versions of verl have: old code reads them.
    """
    original = config_loader.load_configuration
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def load_configuration(
        self: Any, config_name: str | None, overrides: list[str], *arguments: Any, **more: Any
    ) -> Any:
        from runtime.config.composed import add_old_keys
        from runtime.config.composing import composes_ours

        if composes_ours.get():
            return original(self, config_name, overrides, *arguments, **more)
        config = original(self, config_name, force_verl_keys(overrides), *arguments, **more)
        if "actor_rollout_ref" in config:
            add_old_keys(config)
        return config

    config_loader.load_configuration = load_configuration
