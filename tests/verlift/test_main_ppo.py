"""``python -m verl.trainer.main_ppo`` under ``verlift exec``: old launch commands, read and told about."""

import subprocess
import sys

import pytest

from verlift.main_ppo import main, main_sync, main_v0

OLD = ["trainer.logger=['console']", "reward_model.reward_manager=naive", "actor_rollout_ref.rollout.mode=async"]


def run_inside(entry, *arguments):
    with pytest.raises(SystemExit) as ended:
        entry(list(arguments))
    return ended.value.code


def test_an_entry_prints_the_config_with_what_became_of_old_keys(capsys):
    assert run_inside(main, "--config-name", "tiny", "--cfg", "job", *OLD) == 0
    told = capsys.readouterr()
    assert "adv_estimator: grpo" in told.out
    assert "reward_model.reward_manager" in told.err


@pytest.mark.parametrize(("entry", "use_v1"), [(main, "true"), (main_v0, "false"), (main_sync, "true")])
def test_each_entry_chooses_its_trainer(entry, use_v1, capsys):
    assert run_inside(entry, "--config-path", "./config", "--config-name=tiny.yaml", "--cfg", "job") == 0
    assert f"use_v1: {use_v1}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["actor_rollout_ref.actor.entropy_coef=0.01"], "actor_rollout_ref.actor.entropy_coeff"),
        (["actor_rollout_ref.model.lora_rank=8"], "actor_rollout_ref.model.lora_rank"),
        (["--config-name", "no_such"], "no_such"),
        (["--config-path", "no/such"], "no/such"),
        (["data.train_batch_size="], "data.train_batch_size"),
    ],
)
def test_what_cannot_be_run_is_one_message_that_names_it(arguments, named, capsys):
    defaults = [] if arguments[0].startswith("--") else ["--config-name", "tiny"]
    assert run_inside(main, *defaults, *arguments) == 2
    error = capsys.readouterr().err
    assert named in error
    assert "Traceback" not in error


def command(*arguments, module="verl.trainer.main_ppo"):
    words = [sys.executable, "-m", "verlift.main", "exec", "--", "python", "-m", module, "--config-name", "tiny"]
    return subprocess.run([*words, *arguments], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("module", ["verl.trainer.main_ppo", "verl.trainer.main_ppo_sync"])
def test_the_entries_are_programs(module):
    done = command("--cfg", "job", *OLD, module=module)
    assert done.returncode == 0, done.stderr
    assert "adv_estimator: grpo" in done.stdout


@pytest.mark.ray
def test_an_old_command_trains(tmp_path):
    done = command(
        *OLD, f"trainer.default_local_dir={tmp_path}", "trainer.save_freq=2", module="verl.trainer.main_ppo_v0"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "step 2/2" in done.stdout
    assert (tmp_path / "global_step_2" / "actor" / ".metadata").is_file()
