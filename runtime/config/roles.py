"""What a config asks for, worked out from several keys in one place."""

from __future__ import annotations

from omegaconf import DictConfig

from shared_algos.advantages import ADVANTAGES


def num_ranks(config: DictConfig) -> int:
    """Training processes: ``trainer.nnodes * trainer.n_gpus_per_node``, on any device."""
    return config.trainer.nnodes * config.trainer.n_gpus_per_node


def uses_reference(config: DictConfig) -> bool:
    """Whether a reference policy runs: for a KL in the reward or in the loss, as verl's ``need_reference_policy``."""
    return config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss


def uses_critic(config: DictConfig) -> bool:
    """Whether a critic runs: ``critic.enable``; where that is null, if the estimator needs values (``need_critic``)."""
    if config.critic.enable is None:
        return "values" in ADVANTAGES.get(config.algorithm.adv_estimator).needs
    return bool(config.critic.enable)
