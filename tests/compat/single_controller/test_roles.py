"""Roles by name, and what a config or the roles of a run need."""

import pytest
from omegaconf import OmegaConf

from compat.single_controller.roles import (
    Role,
    need_critic,
    need_reference_policy,
    need_reward_model,
    need_teacher_policy,
)
from runtime.config import load_config


def test_names_go_both_ways():
    named = [role for role in Role if role is not Role.Env]
    assert [Role.from_string(str(role)) for role in named] == named
    assert (str(Role.ActorRollout), str(Role.RefPolicy), str(Role.Env)) == ("actor_rollout", "ref", "env")
    with pytest.raises(ValueError, match="no role is called 'critics'; there are actor,"):
        Role.from_string("critics")


@pytest.mark.parametrize(
    ("overrides", "reference", "critic"),
    [
        ([], False, False),
        (["algorithm.adv_estimator=gae"], False, True),
        (["critic.enable=false"], False, False),
        (["critic.enable=true", "algorithm.use_kl_in_reward=true"], True, True),
        (["actor_rollout_ref.actor.use_kl_loss=true"], True, False),
    ],
)
def test_needs_of_a_config(overrides, reference, critic):
    config = load_config("tiny", overrides).config
    assert (need_reference_policy(config), need_critic(config)) == (reference, critic)
    assert not need_reward_model(config)
    assert not need_teacher_policy(config)


def test_needs_of_a_config_with_old_keys():
    config = OmegaConf.create({"algorithm": {"adv_estimator": "mine"}, "critic": {}, "reward_model": {"enable": True}})
    assert (need_reward_model(config), need_critic(config)) == (True, False)


def test_needs_of_the_roles_of_a_run():
    roles = {Role.ActorRollout: object, Role.RefPolicy: object}
    assert (need_reference_policy(roles), need_reward_model(roles), need_critic(roles)) == (True, False, False)
    assert need_reward_model({Role.RewardModel: object})
    assert need_critic({Role.Critic: object})
