"""Hydra apps of recipes: overrides that name keys our configs do not hold, and old keys that the recipe reads."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from runtime.config.composed import old_config
from runtime.config.flat import raw_leaves, with_groups
from runtime.config.tables import aliases, known_key, present_name, verl_defaults

_KEY = re.compile(r"(?P<key>\w+(?:\.\w+)+)=")

MARK = "actor_rollout_ref"
"""A config with this group is one of verl's trainers."""


def force_verl_keys(overrides: Sequence[str]) -> list[str]:
    """``a.b=c`` becomes ``++a.b=c`` where ``a.b`` is a key of verl, of any version; all else stays as it is.

    Hydra refuses to set a key that a config lacks. One of verl's keys is right in an old command, and what became of
    it is told where the config is read.

    >>> force_verl_keys(["actor_rollout_ref.actor.use_kl_loss=True", "trainer.my_key=1", "~data.seed"])
    ['++actor_rollout_ref.actor.use_kl_loss=True', 'trainer.my_key=1', '~data.seed']
    """
    return [f"++{override}" if _is_verl_key(override) else override for override in overrides]


def _is_verl_key(override: str) -> bool:
    found = _KEY.match(override)
    if found is None:
        return False
    key = found["key"]
    return key in with_groups(verl_defaults()) or present_name(key) is not None or known_key(key) is not None


def add_old_keys(config: DictConfig) -> None:
    """Give a config of a trainer, in place, the keys that verl has or had and it lacks, with verl's last defaults.

    A recipe's ``main`` reads such keys (``config.ray_init.num_cpus``) before it makes a trainer.
    """
    if MARK not in config:
        return
    with open_dict(config):
        for key, value in raw_leaves(old_config()).items():
            _add(config, key, value)
        for old, new in aliases().items():  # such as ray_init, which is ray_kwargs.ray_init now
            _add(config, old, copy.deepcopy(OmegaConf.select(config, new)))


def _add(config: DictConfig, key: str, value: Any) -> None:
    """Add ``key`` unless it is there, or a group around it was closed by a null or another value."""
    *groups, name = key.split(".")
    node: Any = config
    for group in groups:
        if group in node and not isinstance(node._get_node(group), DictConfig):
            return
        node = node.setdefault(group, {})
        if node is None:
            return
    if name not in node:
        node[name] = value


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
