"""A config that a recipe's hydra app composed becomes one that both the trainers and the recipe can read."""

import pytest
from omegaconf import OmegaConf

from runtime.config import settle_config
from runtime.config.composing import CONFIG_DIR, compose_config
from runtime.errors import ConfigError


@pytest.fixture
def composed():
    """What hydra makes of our tiny config: struct, with nothing filled in."""
    return compose_config("tiny", CONFIG_DIR)


def test_old_names_stay_readable_beside_the_present_ones(composed):
    OmegaConf.update(composed, "reward_model.reward_manager", "naive", force_add=True)
    OmegaConf.update(composed, "custom_reward_function.name", "my_score", force_add=True)
    config = settle_config(composed, use_v1=False)
    assert config.custom_reward_function.name == "my_score"
    assert config.reward.custom_reward_function.name == "my_score"
    assert config.trainer.use_v1 is False


def test_keys_of_verl_that_are_missing_have_their_defaults(composed):
    config = settle_config(composed, use_v1=False)
    assert config.actor_rollout_ref.rollout.mode == "async"
    assert config.trainer.balance_batch is True


def test_keys_of_the_recipe_are_kept_and_noted(composed, capsys):
    OmegaConf.update(composed, "my_recipe.alpha", 0.5, force_add=True)
    config = settle_config(composed, use_v1=False)
    assert config.my_recipe.alpha == 0.5
    assert "my_recipe.alpha" in capsys.readouterr().err


def test_a_setting_that_is_not_built_is_refused(composed):
    OmegaConf.update(composed, "actor_rollout_ref.model.lora_rank", 8, force_add=True)
    with pytest.raises(ConfigError, match="lora_rank"):
        settle_config(composed, use_v1=False)


def test_the_result_can_be_changed_and_the_given_config_is_as_it_was(composed):
    before = OmegaConf.to_yaml(composed)
    config = settle_config(composed, use_v1=False)
    config.actor_rollout_ref.actor.optim.total_training_steps = 7
    assert OmegaConf.to_yaml(composed) == before


def test_another_engine_is_played_by_ours_and_told(composed, capsys):
    composed.actor_rollout_ref.rollout.name = "vllm"
    OmegaConf.update(composed, "actor_rollout_ref.rollout.gpu_memory_utilization", 0.6, force_add=True)
    config = settle_config(composed, use_v1=False)
    assert config.actor_rollout_ref.rollout.name == "hf"
    told = capsys.readouterr().err
    assert "rollout.name='vllm' became actor_rollout_ref.rollout.name='hf'" in told
    assert "actor_rollout_ref.rollout.gpu_memory_utilization" in told


def test_who_asks_for_the_other_trainer_is_told(composed, capsys):
    composed.trainer.use_v1 = True
    once = settle_config(composed, use_v1=False)
    assert once.trainer.use_v1 is False
    assert "trainer.use_v1: is False here, not True" in capsys.readouterr().err
    settle_config(once, use_v1=False)
    assert "trainer.use_v1" not in capsys.readouterr().err
