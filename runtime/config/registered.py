"""Names that code registers: checked when the config is read, before anything is started for them."""

from __future__ import annotations

from omegaconf import DictConfig

from runtime.config.roles import plays_baseline
from runtime.errors import ConfigError, RewardError, RolloutError
from shared_algos.advantages import ADVANTAGES
from shared_algos.policy_losses import POLICY_LOSSES

AGENT_LOOP = "actor_rollout_ref.rollout.agent.default_agent_loop"


def load_algorithms(config: DictConfig) -> None:
    """Run the file of the user's reward function where it may register an estimator or a loss that nobody knows yet."""
    loss = config.actor_rollout_ref.actor.policy_loss.loss_mode
    known = config.algorithm.adv_estimator in ADVANTAGES.names() and loss in POLICY_LOSSES.names()
    function = config.reward.custom_reward_function
    if not known and function.path is not None:
        _run_reward_file(function)


def check_registered_names(config: DictConfig) -> None:
    """Raise ``ConfigError`` for a reward manager or an agent loop that nobody has registered.

    A name that is not built in may be registered by the file of the user's reward function, which is run to see.
    """
    function = config.reward.custom_reward_function
    try:
        _look_up(config)
    except ConfigError:
        if function.path is None:
            raise
        _run_reward_file(function)
        _look_up(config)


def _run_reward_file(function: DictConfig) -> None:
    """Run the file of ``reward.custom_reward_function``. Raises ``RewardError`` that names the key."""
    from runtime.reward import load_compute_score

    try:
        load_compute_score(function.path, function.name)
    except RewardError as error:
        raise RewardError(f"reward.custom_reward_function.path: {error}") from error


def _look_up(config: DictConfig) -> None:
    # Imports transformers, which takes seconds: what is wrong elsewhere in the config is told before.
    from runtime.agent_loop import AGENT_LOOPS
    from runtime.reward import scores_batches

    if scores_batches(config) and plays_baseline(config):
        estimator, manager = config.algorithm.adv_estimator, config.reward.reward_manager.name
        raise ConfigError(
            f"algorithm.adv_estimator={estimator} needs the reward of a greedy response, made in rollout, and "
            f"reward.reward_manager.name={manager} scores whole batches after it; take a manager with run_single, or "
            "another estimator"
        )
    try:
        AGENT_LOOPS.get(config.actor_rollout_ref.rollout.agent.default_agent_loop)
    except RolloutError as error:
        raise ConfigError(f"{AGENT_LOOP}: {error}") from error
