from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from runtime.errors import ConfigError
from runtime.reward import NaiveRewardManager, build_reward_manager, register_reward_manager, reward_manager_class
from runtime.reward.registry import _managers
from runtime.tiny import make_tokenizer


def reward_config(**manager):
    reward = {
        "custom_reward_function": {"path": None, "name": "compute_score", "reward_kwargs": {}},
        "reward_manager": {"source": "register", "name": "naive", **manager},
        "reward_kwargs": {},
    }
    return OmegaConf.create({"reward": reward, "data": {"reward_fn_key": "source"}})


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr("runtime.reward.registry._managers", dict(_managers))


def test_the_default_config_builds_the_naive_manager():
    manager = build_reward_manager(reward_config(), make_tokenizer())
    assert type(manager) is NaiveRewardManager
    assert manager.reward_fn_key == "source"


def test_keywords_reach_the_function_and_the_manager_or_are_refused(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from runtime.reward import NaiveRewardManager\n"
        "class Mine(NaiveRewardManager):\n"
        "    def __init__(self, *args, penalty=0.0):\n"
        "        super().__init__(*args)\n"
        "        self.penalty = penalty\n"
    )
    config = reward_config(source="importlib", module={"path": str(tmp_path / "mine.py"), "name": "Mine"})
    config.reward.reward_kwargs = {"penalty": 0.5}
    config.reward.custom_reward_function.reward_kwargs = {"by": 2}
    manager = build_reward_manager(config, make_tokenizer())
    assert manager.penalty == 0.5
    assert manager.compute_score.keywords == {"by": 2}
    config.reward.reward_manager.source = "register"
    with pytest.raises(ConfigError, match=r"reward_kwargs=\{'penalty': 0.5\} does not fit NaiveRewardManager"):
        build_reward_manager(config, make_tokenizer())


def test_an_unknown_name_comes_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'dapper' is not known; there are \['batch', 'dapo', .*'naive'"):
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
