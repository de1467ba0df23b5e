"""Old arguments of a recipe's hydra app."""

import pytest
from omegaconf import OmegaConf

from compat.alias.hydra_keys import accept_verl_keys, force_verl_keys
from runtime.config import load_config
from runtime.config.composed import add_old_keys
from runtime.config.flat import raw_leaves


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
    assert force_verl_keys([f"+{override}"]) == [f"++{override}"]


@pytest.mark.parametrize(
    "override",
    [
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


def test_a_loader_is_taught_once_and_compose_is_left_alone():
    class Loader:
        def load_configuration(self, config_name, overrides, run_mode, from_shell=True):
            assert run_mode == 2
            return OmegaConf.create({"name": config_name, "overrides": overrides, "from_shell": from_shell})

    accept_verl_keys(Loader)
    once = Loader.load_configuration
    accept_verl_keys(Loader)
    assert Loader.load_configuration is once
    app = Loader().load_configuration(config_name="c", overrides=["data.seed=1"], run_mode=2)
    assert app == {"name": "c", "overrides": ["++data.seed=1"], "from_shell": True}
    composed = Loader().load_configuration("c", ["data.seed=1"], 2, from_shell=False)
    assert composed == {"name": "c", "overrides": ["data.seed=1"], "from_shell": False}


def test_a_trainers_config_gets_the_old_keys_it_lacks_and_keeps_its_own():
    config = load_config("tiny").config.copy()
    OmegaConf.set_readonly(config, False)
    OmegaConf.update(config, "reward_model.reward_manager", "dapo", force_add=True)
    OmegaConf.update(config, "custom_reward_function", None, force_add=True)
    OmegaConf.set_struct(config, True)
    before = raw_leaves(config)
    add_old_keys(config)
    after = raw_leaves(config)
    # Either name of one key says the same.
    assert {key: after[key] for key in before} == {**before, "reward.reward_manager.name": "dapo"}
    assert config.ray_init.num_cpus is None
    assert config.reward_model.reward_manager == "dapo"
    assert config.custom_reward_function is None  # what is closed by a null stays closed
    assert OmegaConf.is_struct(config)
    OmegaConf.to_container(config, resolve=True)  # recipes print the whole of it


def test_a_config_of_something_else_is_left_alone():
    config = OmegaConf.create({"data": {"path": "x"}})
    add_old_keys(config)
    assert config == {"data": {"path": "x"}}
