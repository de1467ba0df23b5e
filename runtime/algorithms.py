"""The settings of the algorithm core, read from the config in one place and checked there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from omegaconf import DictConfig

from runtime.errors import ConfigError
from shared_algos.advantages import AdvantageConfig
from shared_algos.errors import AlgorithmError
from shared_algos.policy_losses import PolicyLossConfig
from shared_algos.rollout_correction import RolloutCorrectionConfig
from shared_algos.value_loss import ValueLossConfig


def advantage_config(config: DictConfig) -> AdvantageConfig:
    """``algorithm.*`` for the estimators. Raises ConfigError for weights that do not match their components."""
    algorithm = config.algorithm
    keys, weights = algorithm.gdpo_reward_keys, algorithm.gdpo_reward_weights
    if weights is not None and len(weights) != len(keys or ()):
        raise ConfigError(
            f"algorithm.gdpo_reward_weights has {len(weights)} numbers, gdpo_reward_keys has {len(keys or ())} names"
        )
    for weight in weights or ():
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ConfigError(f"algorithm.gdpo_reward_weights holds {weight!r}; it must be a list of numbers")
    return AdvantageConfig(
        gamma=algorithm.gamma,
        lam=algorithm.lam,
        norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
        gdpo_reward_weights=None if weights is None else tuple(float(weight) for weight in weights),
        source=algorithm,
    )


def rollout_correction_config(config: DictConfig) -> RolloutCorrectionConfig:
    """``algorithm.rollout_correction.*``. Raises ConfigError for a mode or threshold that does not exist."""
    settings = config.algorithm.rollout_correction
    with _naming("algorithm.rollout_correction"):
        return RolloutCorrectionConfig(
            **{field.name: settings[field.name] for field in fields(RolloutCorrectionConfig)}
        )


def policy_loss_name(config: DictConfig) -> str:
    """The loss that runs: ``actor.policy_loss.loss_mode``, or that of bypass mode where it is on, as in verl."""
    if config.algorithm.rollout_correction.bypass_mode:
        return "bypass_mode"
    return config.actor_rollout_ref.actor.policy_loss.loss_mode


def policy_loss_config(config: DictConfig) -> PolicyLossConfig:
    """``actor_rollout_ref.actor.*`` for the policy losses. Raises ConfigError naming what is out of bounds."""
    actor, losses = config.actor_rollout_ref.actor, config.actor_rollout_ref.actor.policy_loss
    correction = rollout_correction_config(config)
    with _naming("actor_rollout_ref.actor"):
        return PolicyLossConfig(
            clip_ratio=actor.clip_ratio,
            clip_ratio_low=actor.clip_ratio_low,
            clip_ratio_high=actor.clip_ratio_high,
            clip_ratio_c=actor.clip_ratio_c,
            loss_agg_mode=actor.loss_agg_mode,
            tau_pos=actor.tau_pos,
            tau_neg=actor.tau_neg,
            clip_cov_ratio=losses.clip_cov_ratio,
            clip_cov_lb=losses.clip_cov_lb,
            clip_cov_ub=losses.clip_cov_ub,
            kl_cov_ratio=losses.kl_cov_ratio,
            ppo_kl_coef=losses.ppo_kl_coef,
            dro_beta=losses.dro_beta,
            rollout_correction=correction,
            source=actor,
        )


def value_loss_config(config: DictConfig) -> ValueLossConfig:
    """``critic.*`` for the value loss. Raises ConfigError for an unknown aggregation or a bad clip range."""
    with _naming("critic"):
        return ValueLossConfig(config.critic.cliprange_value, config.critic.loss_agg_mode)


@contextmanager
def _naming(group: str) -> Iterator[None]:
    try:
        yield
    except AlgorithmError as error:
        raise ConfigError(f"{group}: {error}") from error
