"""The config dataclasses: verl 0.9.1's fields, defaults, mutable fields and presets, and ours."""

import dataclasses
import pickle
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from compat.configs.classes import CLASSES, MADE
from compat.configs.presets import PRESETS

pytestmark = pytest.mark.oracle
FOLDER = Path(__file__).parents[2] / ".oracle"
SIDE = Path(__file__).with_name("ppo_side.py")
default_of = runpy.run_path(str(SIDE))["default_of"]

NOT_OURS = {"RolloutConfig": {"server", "sglang_engine_mode", "disaggregation"}}
"""Fields of engines that are not built."""
NOT_VERLS = {"RewardConfig": {"custom_reward_function"}}
"""Fields that verl's YAML has and its class does not."""
OTHER_DEFAULTS = {
    "optim": "the class of an FSDP optimizer in every group",
    "engine": "an empty group is a dict",
    "model_config": "an empty group is a dict",
    "router_replay": "the routing of experts is not recorded: no class of its own",
    "qat": "one class for the actor's and the engine's",
    "reward_manager": "no class of its own",
    "rollout": "a reward model's rollout is a dict",
    "profiler": "a group of the YAML, off, where verl's class has None",
}


@pytest.fixture(scope="module")
def of_verl():
    """``of_verl(function, **arguments)`` of ``ppo_side.py``."""
    if not (FOLDER / "verl").is_dir():
        pytest.skip("verl 0.9.1 is not in .oracle/: run tests/oracle/install.sh")
    pipe = subprocess.PIPE
    command = [sys.executable, str(SIDE), str(FOLDER)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:

        def call(function, **arguments):
            pickle.dump(("__main__", function, arguments, 0), process.stdin)
            process.stdin.flush()
            succeeded, answer = pickle.load(process.stdout)
            assert succeeded, answer
            return answer[0]

        yield call
        process.stdin.close()


def test_fields_defaults_and_what_may_be_set(of_verl):
    classes = of_verl("class_fields", names=list(CLASSES))
    for name, (theirs, mutable) in classes.items():
        fields = {field.name: field for field in dataclasses.fields(MADE[name])}
        assert theirs.keys() - fields.keys() == NOT_OURS.get(name, set()), name
        assert fields.keys() - theirs.keys() == NOT_VERLS.get(name, set()), name
        assert sorted(MADE[name]._mutable_fields) == mutable, name
        for key in fields.keys() & theirs.keys() - OTHER_DEFAULTS.keys():
            assert default_of(fields[key], dataclasses.MISSING) == theirs[key], f"{name}.{key}"


@pytest.mark.parametrize("name", [*PRESETS, "decoupled_token_icepop", "bypass_pg_token_icepop"])
def test_presets(of_verl, name):
    assert dict(getattr(MADE["RolloutCorrectionConfig"], name)()) == of_verl("preset", name=name)
