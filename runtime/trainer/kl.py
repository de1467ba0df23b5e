"""The controller of the KL coefficient in the reward; it stays with the trainer."""

from __future__ import annotations

from omegaconf import DictConfig

from shared_algos.kl import AdaptiveKLController, FixedKLController, KLController


def kl_controller(config: DictConfig) -> KLController:
    """Build the controller that ``algorithm.kl_ctrl`` describes."""
    settings = config.algorithm.kl_ctrl
    if settings.type == "adaptive":
        return AdaptiveKLController(settings.kl_coef, settings.target_kl, settings.horizon)
    return FixedKLController(settings.kl_coef)
