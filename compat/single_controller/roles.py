"""The roles of a run, and which of them a config needs, in verl's words of both eras."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from omegaconf import DictConfig, OmegaConf

from compat.single_controller.worker import Worker
from shared_algos.advantages import ADVANTAGES

WorkerType = type[Worker]


class Role(Enum):
    """What a worker group does."""

    Actor = 0
    Rollout = 1
    ActorRollout = 2
    Critic = 3
    RefPolicy = 4
    RewardModel = 5
    ActorRolloutRef = 6
    Env = 7
    TeacherModel = 8

    def __str__(self) -> str:
        return _NAMES.get(self, self.name.lower())

    @classmethod
    def from_string(cls, name: str) -> Role:
        """The role of a name such as ``actor_rollout``. ``ValueError`` names those there are."""
        for role, known in _NAMES.items():
            if known == name.lower():
                return role
        raise ValueError(f"no role is called {name!r}; there are {', '.join(sorted(_NAMES.values()))}")


_NAMES = {
    Role.Actor: "actor",
    Role.Rollout: "rollout",
    Role.ActorRollout: "actor_rollout",
    Role.Critic: "critic",
    Role.RefPolicy: "ref",
    Role.RewardModel: "rm",
    Role.ActorRolloutRef: "actor_rollout_ref",
    Role.TeacherModel: "teacher",
}

ConfigOrRoles = DictConfig | Mapping[Any, Any]
"""A config (verl 0.6 and later), or the roles of a run by their worker classes (earlier)."""


def _needs(config: ConfigOrRoles, role: Role, *keys: str) -> bool:
    if isinstance(config, DictConfig):
        return any(bool(OmegaConf.select(config, key, default=False)) for key in keys)
    return role in config


def need_reference_policy(config: ConfigOrRoles) -> bool:
    """Whether a reference policy runs: for a KL in the reward or in the loss; or whether it has a worker class."""
    keys = ("algorithm.use_kl_in_reward", "actor_rollout_ref.actor.use_kl_loss")
    return _needs(config, Role.RefPolicy, *keys)


def need_reward_model(config: ConfigOrRoles) -> bool:
    """Whether a reward model runs, by its key of any version; or whether it has a worker class."""
    return _needs(config, Role.RewardModel, "reward.reward_model.enable", "reward_model.enable")


def need_teacher_policy(config: ConfigOrRoles) -> bool:
    """Whether a teacher is distilled from; or whether it has a worker class."""
    return _needs(config, Role.TeacherModel, "distillation.enabled")


def need_critic(config: ConfigOrRoles) -> bool:
    """Whether a critic runs: ``critic.enable``; where that is null or missing, if the estimator needs values."""
    if not isinstance(config, DictConfig):
        return Role.Critic in config
    enabled = OmegaConf.select(config, "critic.enable")
    if enabled is not None:
        return bool(enabled)
    estimator = getattr(config.algorithm.adv_estimator, "value", config.algorithm.adv_estimator)
    return estimator in ADVANTAGES.names() and "values" in ADVANTAGES.get(estimator).needs
