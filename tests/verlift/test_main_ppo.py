"""``python -m verl.trainer.main_ppo`` under ``verlift exec``: old launch commands, read and told about."""

import subprocess
import sys

import pytest

from verlift.main_ppo import main, main_sync, main_v0, parse, read

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
        (["--config-dir", "no/such"], "--config-dir no/such"),
        (["--config-name", "ppo_megatron_trainer"], "the Megatron engine is not built"),
        (["-m"], "-m is an option of hydra that is not served: one command is one run"),
        (["--multirun", "data.seed=1,2"], "--multirun is an option"),
        (["--info"], "--info is an option"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_what_cannot_be_run_is_one_message_that_names_it(arguments, named, capsys):
    defaults = [] if arguments[0].startswith("--") else ["--config-name", "tiny"]
    assert run_inside(main, *defaults, *arguments) == 2
    error = capsys.readouterr().err
    assert named in error
    assert "Traceback" not in error


def test_a_config_dir_is_looked_in_beside_ours(tmp_path, capsys):
    """hydra's --config-dir adds a folder: the main config, and what it names, may lie in either."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "short.yaml").write_text("defaults: [legacy_data]\nmax_prompt_length: 33\n")
    (tmp_path / "mine.yaml").write_text("defaults: [tiny, _self_]\ndata: {max_response_length: 17}\n")
    added = ["--config-dir", str(tmp_path)]
    ours = read(parse([*added, "--config-name", "ppo_trainer", "data=short", "data.train_files=x"]))
    assert ours.data.max_prompt_length == 33
    theirs = read(parse(["--config-name", "mine", *added, "trainer.nnodes=1", "--cfg", "job", "data.seed=3"]))
    assert (theirs.data.max_response_length, theirs.data.max_prompt_length, theirs.data.seed) == (17, 32, 3)
    assert "moved" not in capsys.readouterr().err


def command(*arguments, module="verl.trainer.main_ppo"):
    words = [sys.executable, "-m", "verlift.main", "exec", "--", "python", "-m", module, "--config-name", "tiny"]
    return subprocess.run([*words, *arguments], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    "module", ["verl.trainer.main_ppo", pytest.param("verl.trainer.main_ppo_sync", marks=pytest.mark.evidence)]
)
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
