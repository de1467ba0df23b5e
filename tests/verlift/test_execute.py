"""``verlift exec`` in real processes: what the command and all that it starts can import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CLEAN = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RAY_OVERRIDE_RESOURCES")}


def verlift_exec(
    folder: Path, *arguments: str, options: tuple[str, ...] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "verlift.main", "exec", *options, "--", *arguments]
    return subprocess.run(command, cwd=folder, env={**CLEAN, **more}, capture_output=True, text=True, timeout=300)


def run_python(folder: Path, code: str, *arguments: str, **more: str) -> str:
    done = verlift_exec(folder, "python", "-c", code, *arguments, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def real_verl(folder: Path) -> Path:
    package = folder / "verl"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = 'real'")
    return package


def test_verl_is_served_and_nothing_heavy_is_loaded(tmp_path):
    code = (
        "import sys, verl; import verl.trainer.config; heavy = {'torch', 'hydra', 'omegaconf', 'ray', 'numpy', 'csv'};"
        "print(verl.__version__, heavy & set(sys.modules))"
    )
    assert run_python(tmp_path, code) == "0.9.1 set()"


def test_a_process_that_never_imports_verl_never_reads_the_table(tmp_path):
    code = "import sys; print([name for name in sys.modules if name in ('verl', 'compat.alias.table')])"
    assert run_python(tmp_path, code) == "[]"


def test_processes_that_it_starts_have_it_too(tmp_path):
    code = "import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', sys.argv[1]], text=True))"
    assert run_python(tmp_path, code, "import verl; print(verl.__version__)") == "0.9.1"


@pytest.mark.parametrize("name", ["script.py", "-m"])
def test_scripts_and_modules(tmp_path, name):
    (tmp_path / "script.py").write_text("import sys, verl; print(verl.__version__, sys.argv[1:])")
    program = ["-m", "script"] if name == "-m" else [name]
    done = verlift_exec(tmp_path, "python", *program, "a.b=1", "--debug", "-v", "--force", "--", "x")
    assert done.stdout == "0.9.1 ['a.b=1', '--debug', '-v', '--force', '--', 'x']\n", done.stderr


def test_the_dashes_may_be_left_out(tmp_path):
    command = [sys.executable, "-m", "verlift.main", "exec", "python", "-c", "import sys; print(sys.argv)", "-v"]
    done = subprocess.run(command, cwd=tmp_path, env=CLEAN, capture_output=True, text=True, timeout=60)
    assert done.stdout == "['-c', '-v']\n", done.stderr


def test_the_exit_code_is_the_commands(tmp_path):
    assert verlift_exec(tmp_path, "python", "-c", "raise SystemExit(7)").returncode == 7


def test_signals_reach_the_command(tmp_path):
    code = "import time; print('up', flush=True); time.sleep(60)"
    command = [sys.executable, "-m", "verlift.main", "exec", "--", "python", "-c", code]
    with subprocess.Popen(command, cwd=tmp_path, env=CLEAN, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == -signal.SIGTERM


def test_a_command_that_is_not_there_is_one_message(tmp_path):
    done = verlift_exec(tmp_path, "no-such-program")
    assert done.returncode == 2
    assert "there is no command 'no-such-program'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("place", ["working directory", "script's folder", "PYTHONPATH"])
def test_the_real_verl_is_not_hidden_unasked(tmp_path, place):
    package = real_verl(tmp_path / "checkout")
    folder = tmp_path / "checkout" if place == "working directory" else tmp_path
    program = ["-c", "pass"] if place != "script's folder" else [str(tmp_path / "checkout" / "main.py")]
    more = {"PYTHONPATH": str(tmp_path / "checkout")} if place == "PYTHONPATH" else {}
    done = verlift_exec(folder, "python", *program, **more)
    assert done.returncode == 2
    assert str(package) in done.stderr
    assert "--force" in done.stderr


def test_forced_the_alias_wins(tmp_path):
    real_verl(tmp_path)
    code = "import verl; print(verl.__version__)"
    done = verlift_exec(tmp_path, "python", "-c", code, options=("--force",), PYTHONPATH=str(tmp_path))
    assert done.stdout == "0.9.1\n", done.stderr


def test_an_error_inside_names_what_is_near(tmp_path):
    done = verlift_exec(tmp_path, "python", "-c", "from verl.trainer import konfig")
    assert done.returncode == 1
    assert "AliasError: verl.trainer.konfig is not served by the verl alias; near names" in done.stderr


def test_a_sitecustomize_of_the_users_still_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.mine = 'ran'")
    assert run_python(tmp_path, "import verl; print(mine)", PYTHONPATH=str(tmp_path)) == "ran"


def test_a_python_without_verlift_is_told(tmp_path):
    from compat.alias.activation import SITE

    other_python = os.path.realpath(sys.executable)  # the one that the virtual environment was made from
    command = [other_python, "-c", "print('runs')"]
    environment = {**CLEAN, "PYTHONPATH": str(SITE)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "runs\n"
    assert "the verl alias is not active" in done.stderr


def test_in_process_it_is_refused_forced_and_idempotent(tmp_path):
    real_verl(tmp_path)
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "import compat\n"
        "try:\n    compat.enable_verl_alias()\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, sys.argv[1] in str(error), 'force=True' in str(error))\n"
        "compat.enable_verl_alias(force=True); first = dict(os.environ), list(sys.meta_path)\n"
        "compat.enable_verl_alias(); print(first == (dict(os.environ), list(sys.meta_path)))\n"
        "import subprocess, verl; print(verl.__version__)\n"
        "print(subprocess.check_output([sys.executable, '-c', 'import verl; print(verl.__version__)'], text=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=CLEAN, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["AliasError", "True", "True", "True", "0.9.1", "0.9.1"], done.stderr


def test_in_process_it_is_too_late_after_an_import(tmp_path):
    real_verl(tmp_path)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import verl, compat; compat.enable_verl_alias(force=True)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=CLEAN, capture_output=True, text=True, timeout=60
    )
    assert f"verl has been imported from {tmp_path}" in done.stderr


APP = """
import hydra
from omegaconf import OmegaConf
@hydra.main(config_path="config", config_name="mine", version_base=None)
def main(config):
    OmegaConf.to_container(config, resolve=True)
    print(config.data.train_batch_size, config.mine.size, config.ray_init.num_cpus, config.trainer.profile_steps,
          config.custom_reward_function.path)
main()
"""


@pytest.mark.parametrize("searched", ["file://verl/trainer/config", "pkg://verl.trainer.config", None])
def test_a_hydra_app_finds_our_configs_and_takes_old_keys(tmp_path, searched):
    (tmp_path / "config").mkdir()
    where = f"hydra:\n  searchpath: ['{searched}']\n" if searched else ""
    (tmp_path / "config" / "mine.yaml").write_text(where + "defaults: [ppo_trainer, _self_]\nmine: {size: 3}\n")
    (tmp_path / "main.py").write_text(APP)
    arguments = ["data.train_batch_size=24", "custom_reward_function.path=r.py", "mine.size=4"]
    done = verlift_exec(tmp_path, "python", "main.py", *arguments)
    assert done.stdout == "24 4 None None r.py\n", done.stderr
    assert "searchpath" not in done.stderr
    wrong = verlift_exec(tmp_path, "python", "main.py", "data.train_batch_sizes=24")
    assert wrong.returncode == 1
    assert "data.train_batch_sizes" in wrong.stderr


@pytest.mark.ray
def test_a_ray_worker_imports_verl_and_there_are_logical_cpus_enough(tmp_path):
    code = """
import ray
ray.init(include_dashboard=False)
@ray.remote
def look():
    import os, verl
    return verl.__version__, os.environ["MKL_CBWR"]
print(*ray.get(look.remote()), ray.cluster_resources()["CPU"] >= 16)
"""
    assert run_python(tmp_path, code) == "0.9.1 AVX2 True"
