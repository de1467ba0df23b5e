"""The whole config, found from the part of it that verl gives a worker."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from runtime.errors import ConfigError


def whole_config(part: Any) -> DictConfig:
    """The config that ``part`` (``config.actor_rollout_ref``, ``config.critic``) belongs to.

    A part keeps its parent on its way to a worker, and needs it: its interpolations lead out of it. Raises
    ``ConfigError`` for one that was taken out of its config, by ``OmegaConf.to_container`` for instance.
    """
    root = part._get_root() if isinstance(part, DictConfig) else None
    if not isinstance(root, DictConfig) or "actor_rollout_ref" not in root or "data" not in root:
        raise ConfigError(
            f"a worker was given {type(part).__name__} without the config it belongs to; give it "
            "config.actor_rollout_ref or config.critic as they are"
        )
    return root
