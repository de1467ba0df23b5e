"""Old arguments of a recipe's hydra app."""

import pytest

from compat.alias.hydra_keys import accept_verl_keys, force_verl_keys


@pytest.mark.parametrize(
    "override",
    [
        "actor_rollout_ref.actor.use_kl_loss=True",  # ours too
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",  # a key of verl's that ours has not
        "custom_reward_function.path=r.py",  # an old name
        "reward_model.reward_manager=dapo",
        "reward.reward_kwargs.anything=1",  # free-form
        "actor_rollout_ref.actor.optim.override_optimizer_config.x={a:1}",
    ],
)
def test_a_key_of_verl_may_be_added(override):
    assert force_verl_keys([override]) == [f"++{override}"]


@pytest.mark.parametrize(
    "override",
    [
        "+actor_rollout_ref.actor.use_kl_loss=True",
        "++data.seed=1",
        "~data.seed",
        "mine.own.key=1",
        "actor_rollout_ref.actor.use_kl_los=True",
        "model_engine=dp",
        "hydra.run.dir=/tmp",
        "actor@actor_rollout_ref.actor=dp_actor",
        "--config-name=x",
        "x=actor_rollout_ref.actor.use_kl_loss=1",
    ],
)
def test_all_else_stays_as_it_is(override):
    assert force_verl_keys([override]) == [override]


def test_a_loader_is_taught_once():
    class Loader:
        def load_configuration(self, config_name, overrides, run_mode=None):
            return config_name, overrides, run_mode

    accept_verl_keys(Loader)
    once = Loader.load_configuration
    accept_verl_keys(Loader)
    assert Loader.load_configuration is once
    assert Loader().load_configuration("c", ["data.seed=1"], run_mode=2) == ("c", ["++data.seed=1"], 2)
