"""Modules of a recipe are imported before its config is checked, and are found by workers."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from compat.algorithms import register_adv_est
from runtime.config import load_config, uses_critic
from runtime.errors import ConfigError
from runtime.recipe import IMPORT_MODULES, KEYS, import_modules, with_modules_of_algorithms
from shared_algos.advantages import ADVANTAGES
from shared_algos.policy_losses import POLICY_LOSSES

EXTERNAL_LIB, LOSS = KEYS[0], "actor_rollout_ref.actor.policy_loss.loss_mode"
REGISTERING = """
from compat.algorithms import register_adv_est, register_policy_loss

@register_adv_est("{name}_advantage")
def advantage(token_level_rewards, response_mask, values):
    return values, values

@register_policy_loss("{name}_loss")
def loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):
    return -log_prob.mean(), {{}}

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return 0.0
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """``recipe(name)`` writes NAME.py, which registers NAME_advantage and NAME_loss; what it registers goes again."""
    for registry in (ADVANTAGES, POLICY_LOSSES):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(name):
        file = tmp_path / f"{name}.py"
        file.write_text(REGISTERING.format(name=name), encoding="utf-8")
        importlib.invalidate_caches()
        return file

    return write


def chosen(name):
    return [f"algorithm.adv_estimator={name}_advantage", f"{LOSS}={name}_loss"]


def test_a_file_registers_before_names_are_checked(recipe):
    file = recipe("of_a_file")
    config = load_config("tiny", [*chosen("of_a_file"), f"{EXTERNAL_LIB}={file}"]).config
    assert list(config.actor_rollout_ref.model.external_lib) == [str(file)]
    assert uses_critic(config), "the estimator requires values"
    assert with_modules_of_algorithms(config).runtime.import_modules == [], "workers import external_lib as it is"


def test_a_name_that_nobody_registers_is_told_with_the_nearest(recipe):
    file = recipe("of_a_slip")
    with pytest.raises(ConfigError, match=r"'of_a_slap_loss' is not one of .*; the nearest is 'of_a_slip_loss'"):
        load_config("tiny", [f"{LOSS}=of_a_slap_loss", f"{EXTERNAL_LIB}={file}"])


@pytest.mark.parametrize("form", ["{0},{1}", "[{0},{1}]", "[ {0} , file://{1} ]"])
def test_several_files_and_forms(recipe, form):
    first, second = recipe("of_several_1"), recipe("of_several_2")
    text = form.format(first, second)
    text = text if text.startswith("[") else f"'{text}'"
    overrides = [
        "algorithm.adv_estimator=of_several_1_advantage",
        f"{LOSS}=of_several_2_loss",
        f"{EXTERNAL_LIB}={text}",
    ]
    assert list(load_config("tiny", overrides).config.actor_rollout_ref.model.external_lib) == [str(first), str(second)]


def test_modules_of_the_working_directory_are_found(recipe, tmp_path, monkeypatch):
    recipe("in_the_working_directory")
    monkeypatch.chdir(tmp_path)
    overrides = chosen("in_the_working_directory")
    config = load_config("tiny", [*overrides, f"{EXTERNAL_LIB}=in_the_working_directory"]).config
    assert list(config.actor_rollout_ref.model.external_lib) == ["in_the_working_directory"]
    relative = load_config("tiny", [f"{EXTERNAL_LIB}=./in_the_working_directory.py"])
    assert list(relative.config.actor_rollout_ref.model.external_lib) == [str(tmp_path / "in_the_working_directory.py")]


def test_verls_environment_variable_reaches_the_workers(recipe, tmp_path, monkeypatch):
    recipe("of_the_environment")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "of_the_environment, json")
    config = load_config("tiny", chosen("of_the_environment")).config
    assert list(config.runtime.import_modules) == ["of_the_environment", "json"]


def test_what_cannot_be_imported_is_told_by_key_and_name(tmp_path):
    with pytest.raises(ConfigError, match=r"external_lib: .*no_such_module.*ModuleNotFoundError"):
        load_config("tiny", [f"{EXTERNAL_LIB}=no_such_module"])
    with pytest.raises(ConfigError, match=r"critic.model.external_lib: no Python file '.*gone.py'"):
        load_config("tiny", ["critic.model.external_lib=gone.py"])
    (tmp_path / "raising.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match=r"runtime.import_modules: .*raising.py .*ZeroDivisionError"):
        load_config("tiny", [f"{IMPORT_MODULES}=[{tmp_path}/raising.py]"])


def test_the_file_of_the_reward_function_may_register(recipe):
    file = recipe("of_the_reward")
    config = load_config("tiny", [*chosen("of_the_reward"), f"reward.custom_reward_function.path={file}"]).config
    assert list(with_modules_of_algorithms(config).runtime.import_modules) == [str(file)]


def test_one_file_under_two_names_registers_once(recipe, tmp_path, monkeypatch):
    file = recipe("under_two_names")
    monkeypatch.syspath_prepend(tmp_path)
    load_config("tiny", [*chosen("under_two_names"), f"{EXTERNAL_LIB}=[under_two_names,{file}]"])


def test_what_the_driver_imports_itself_leads_workers_to_its_module(recipe, tmp_path, monkeypatch):
    recipe("of_a_driver")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("of_a_driver")
    config = with_modules_of_algorithms(load_config("tiny", chosen("of_a_driver")).config)
    assert list(config.runtime.import_modules) == ["of_a_driver"]
    assert with_modules_of_algorithms(config) is config
    import_modules(config)


def test_a_module_that_was_loaded_by_hand_is_found_by_its_file(recipe):
    file = recipe("by_hand")
    spec = importlib.util.spec_from_file_location("a_name_that_no_finder_knows", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    config = with_modules_of_algorithms(load_config("tiny", chosen("by_hand")).config)
    assert list(config.runtime.import_modules) == [str(file)]


def test_a_function_that_no_worker_can_import_is_refused(recipe, monkeypatch):  # noqa: ARG001
    def advantage(token_level_rewards, response_mask):
        """Never called."""

    advantage.__module__ = "typed_at_a_prompt"
    register_adv_est("typed")(advantage)
    config = load_config("tiny", ["algorithm.adv_estimator=typed"]).config
    with pytest.raises(ConfigError, match=r"typed_at_a_prompt\..*no worker can import it.*external_lib"):
        with_modules_of_algorithms(config)


def test_nothing_is_added_for_built_in_names():
    config = load_config("tiny").config
    assert with_modules_of_algorithms(config) is config
    assert list(config.actor_rollout_ref.model.external_lib) == list(config.runtime.import_modules) == []


SCRIPT = """
from runtime.config import load_config
from runtime.recipe import with_modules_of_algorithms

if __name__ == "__main__":
    config = load_config("tiny", ["algorithm.adv_estimator=script_advantage"]).config
    print(list(with_modules_of_algorithms(config).runtime.import_modules))
"""


@pytest.mark.parametrize(("arguments", "module"), [(["{0}/script.py"], "{0}/script.py"), (["-m", "script"], "script")])
def test_a_script_leads_workers_to_itself(recipe, tmp_path, arguments, module):
    file = recipe("script")
    file.write_text(file.read_text() + SCRIPT)
    command = [sys.executable, *(argument.format(tmp_path) for argument in arguments)]
    house = str(Path(__file__).parents[2])
    environment = {"PYTHONPATH": house, "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str([module.format(tmp_path)]), done.stderr


def test_weights_that_a_loss_cannot_take_are_refused_by_the_config(recipe):
    file = recipe("without_weights")
    correction = "algorithm.rollout_correction.rollout_is=token"
    with pytest.raises(
        ConfigError, match=r"rollout_is=token would have no effect: .*without_weights.*rollout_is_weights"
    ):
        load_config("tiny", [*chosen("without_weights"), f"{EXTERNAL_LIB}={file}", correction])
