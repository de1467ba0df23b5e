from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from runtime.errors import ConfigError
from runtime.reward import NaiveRewardManager, build_reward_manager, register_reward_manager, reward_manager_class
from runtime.reward.registry import _managers
from runtime.tiny import make_tokenizer


def reward_config(**manager):
    return OmegaConf.create(
        {
            "custom_reward_function": {"path": None, "name": "compute_score"},
            "reward_manager": {"source": "register", "name": "naive", **manager},
        }
    )


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr("runtime.reward.registry._managers", dict(_managers))


def test_the_default_config_builds_the_naive_manager():
    manager = build_reward_manager(reward_config(), make_tokenizer(), "source")
    assert type(manager) is NaiveRewardManager
    assert manager.reward_fn_key == "source"


def test_an_unknown_name_comes_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'dapper' is not known; there are \['naive'\]"):
        build_reward_manager(reward_config(name="dapper"), make_tokenizer())
    with pytest.raises(ConfigError, match="'import' is not known"):
        build_reward_manager(reward_config(source="import"), make_tokenizer())


@pytest.mark.usefixtures("registry")
def test_registering_a_class_again_is_a_no_op_and_another_class_an_error():
    def definition():
        @register_reward_manager("mine")
        class Mine(NaiveRewardManager):
            pass

        return Mine

    first = definition()
    definition()
    assert reward_manager_class("mine") is first
    with pytest.raises(ConfigError, match="'naive' is already NaiveRewardManager"):
        register_reward_manager("naive")(first)


def test_a_manager_of_a_file(tmp_path):
    file = tmp_path / "manager.py"
    file.write_text("from runtime.reward import NaiveRewardManager\nclass Mine(NaiveRewardManager):\n    pass\n")
    module = {"path": str(file), "name": "Mine"}
    assert (
        type(build_reward_manager(reward_config(source="importlib", module=module), make_tokenizer())).__name__
        == "Mine"
    )
    with pytest.raises(ConfigError, match=r"manager\.py has no 'Yours'"):
        build_reward_manager(reward_config(source="importlib", module=module | {"name": "Yours"}), make_tokenizer())
