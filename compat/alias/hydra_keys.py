"""Hydra apps of recipes: overrides that name keys our configs do not hold, and old keys that the recipe reads."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from runtime.config.composed import add_old_keys
from runtime.config.flat import with_groups
from runtime.config.tables import known_key, old_defaults, present_name

_KEY = re.compile(r"\+?(?P<key>\w+(?:\.\w+)+)=")


def force_verl_keys(overrides: Sequence[str]) -> list[str]:
    """``a.b=c`` and ``+a.b=c`` become ``++a.b=c`` where ``a.b`` is a key of verl, of any version; all else stays.

    Hydra refuses to set a key that a config lacks, and to add one that it has. One of verl's keys is right in an old
    command, and what became of it is told where the config is read.

    >>> force_verl_keys(["actor_rollout_ref.actor.use_kl_loss=True", "trainer.my_key=1", "~data.seed"])
    ['++actor_rollout_ref.actor.use_kl_loss=True', 'trainer.my_key=1', '~data.seed']
    """
    return [f"++{override.removeprefix('+')}" if _is_verl_key(override) else override for override in overrides]


def _is_verl_key(override: str) -> bool:
    found = _KEY.match(override)
    if found is None:
        return False
    key = found["key"]
    return key in with_groups(old_defaults()) or present_name(key) is not None or known_key(key) is not None


def accept_verl_keys(config_loader: Any) -> None:
    """Let hydra's ``config_loader`` class treat overrides and configs of apps as above, once; not of ``compose``."""
    original = config_loader.load_configuration
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def load_configuration(
        self: Any, config_name: str | None, overrides: list[str], run_mode: Any, from_shell: bool = True, **more: Any
    ) -> Any:
        if not from_shell:
            return original(self, config_name, overrides, run_mode, from_shell=False, **more)
        config = original(self, config_name, force_verl_keys(overrides), run_mode, **more)
        add_old_keys(config)
        return config

    config_loader.load_configuration = load_configuration
