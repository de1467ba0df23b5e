"""``verlift train``: run one trainer, the one that ``trainer.use_v1`` selects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verlift.options import ConfigName, ConfigPath, Overrides, read_config

if TYPE_CHECKING:
    from omegaconf import DictConfig


def train(overrides: Overrides = None, config_name: ConfigName = "ppo_trainer", config_path: ConfigPath = None) -> None:
    """Train with the V1 trainer (trainer.use_v1=true, the default) or the legacy one (false)."""
    train_with(read_config(config_name, config_path, overrides))


def train_with(config: DictConfig) -> None:
    """Train with the trainer that ``config`` selects, and end its actors."""
    from verlift.trainers import build_trainer

    trainer = build_trainer(config)
    try:
        trainer.fit()
    finally:
        trainer.close()
