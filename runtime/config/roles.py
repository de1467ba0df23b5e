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


def plays_baseline(config: DictConfig) -> bool:
    """Whether rollout plays one greedy session more for each prompt, whose reward is the baseline (ReMax)."""
    return "reward_baselines" in ADVANTAGES.get(config.algorithm.adv_estimator).needs


def bypasses_old_log_prob(config: DictConfig) -> bool:
    """Whether the rollout's own log-probs serve as ``old_log_probs`` (``algorithm.rollout_correction.bypass_mode``)."""
    return bool(config.algorithm.rollout_correction.bypass_mode)


def writes_sum_pi_squared(config: DictConfig) -> bool:
    """Whether ``old_log_prob`` writes ``sum_pi_squared``: where it is asked for, and where the estimator needs it."""
    wanted = config.actor_rollout_ref.actor.calculate_sum_pi_squared
    return wanted or "sum_pi_squared" in ADVANTAGES.get(config.algorithm.adv_estimator).needs


def corrects_rollout(config: DictConfig) -> bool:
    """Whether the advantage stage writes ``rollout_is_weights``; in bypass mode the loss makes its own."""
    return config.algorithm.rollout_correction.rollout_is is not None and not bypasses_old_log_prob(config)
