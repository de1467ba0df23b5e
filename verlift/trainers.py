"""``trainer.use_v1`` chosen in one place."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig

from runtime.trainer.base import Trainer
from runtime.trainer.hooks import StageHook


def build_trainer(config: DictConfig, hooks: Sequence[StageHook] = ()) -> Trainer:
    """The V1 trainer when ``trainer.use_v1`` is true, the legacy one when it is false."""
    if config.trainer.use_v1:
        from v1.trainer import V1Trainer

        return V1Trainer(config, hooks)
    from legacy.trainer import LegacyTrainer

    return LegacyTrainer(config, hooks)
