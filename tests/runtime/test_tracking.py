"""Tracking: what each backend writes is read back."""

import io
import json
import math
import sys

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from runtime.errors import ConfigError
from runtime.tracking import ConsoleBackend, JsonlBackend, Run, Tracking, step_line

METRICS = {
    "critic/rewards/mean": 0.25,
    "response_length/mean": 12.5,
    "actor/pg_loss": -0.1,
    "actor/kl_loss": 0.003,
    "actor/ppo_kl": 9.0,
    "actor/grad_norm": 1.5,
    "perf/throughput": 321.4,
    "timing_s/rollout": 1.25,
    "timing_s/update_actor": 2.5,
}


def tracking(directory, *backends, **kwargs):
    return Tracking("project", "experiment", list(backends), {}, directory, **kwargs)


def lines(directory):
    return (directory / "metrics.jsonl").read_text().splitlines()


def run(directory, total_steps=None, start_step=0):
    return Run("project", "experiment", directory, {}, total_steps, start_step)


def test_jsonl_has_one_sorted_object_a_step_with_all_digits(tmp_path):
    with tracking(tmp_path / "new" / "run", "jsonl") as tracker:
        tracker.log({"b": 0.1 + 0.2, "a": 1}, 1)
        tracker.log({"a": 1e-8}, 2)
    assert lines(tmp_path / "new" / "run") == [
        '{"a": 1.0, "b": 0.30000000000000004, "step": 1}',
        '{"a": 1e-08, "step": 2}',
    ]


def test_equal_runs_give_equal_files(tmp_path):
    for name in ("one", "two"):
        with tracking(tmp_path / name, "jsonl") as tracker:
            for step in range(1, 4):
                tracker.log(METRICS if name == "one" else dict(reversed(METRICS.items())), step)
    assert (tmp_path / "one/metrics.jsonl").read_bytes() == (tmp_path / "two/metrics.jsonl").read_bytes()


def test_a_second_call_for_one_step_adds_to_its_line(tmp_path):
    with tracking(tmp_path, "jsonl") as tracker:
        tracker.log({"val": 0.5}, 0)
        tracker.log({"train": 1.0}, 1)
        tracker.log({"val": 0.75}, 1)
        tracker.log({"train": 2.0}, 2)
    assert [json.loads(line) for line in lines(tmp_path)] == [
        {"step": 0, "val": 0.5},
        {"step": 1, "train": 1.0, "val": 0.75},
        {"step": 2, "train": 2.0},
    ]


def test_a_resumed_run_writes_the_file_of_an_uninterrupted_one(tmp_path):
    for directory, parts in ((tmp_path / "whole", [(0, 1, 4)]), (tmp_path / "parts", [(0, 1, 3), (2, 3, 4)])):
        for start, first, last in parts:
            with tracking(directory, "jsonl", start_step=start) as tracker:
                for step in range(first, last + 1):
                    tracker.log({"x": step / 3}, step)
            with (directory / "metrics.jsonl").open("a") as file:
                file.write('{"step": 9, "cut o' if (directory.name, last) == ("parts", 3) else "")
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")
    assert len(lines(tmp_path / "parts")) == 4


def test_a_new_run_starts_the_file_anew(tmp_path):
    for value in (1.0, 2.0):
        with tracking(tmp_path, "jsonl") as tracker:
            tracker.log({"x": value}, 1)
    assert lines(tmp_path) == ['{"step": 1, "x": 2.0}']


def test_numbers_that_json_has_not_are_text(tmp_path):
    backend = JsonlBackend(run(tmp_path))
    backend.log({"a": math.nan, "b": -math.inf}, 1)
    backend.finish()
    assert lines(tmp_path) == ['{"a": "nan", "b": "-inf", "step": 1}']


def test_the_step_line_shows_what_a_person_looks_for():
    assert step_line(METRICS, 3, 30) == (
        "step 3/30  reward 0.2500  length 12.5  kl to ref 0.00300  kl to old 9.00000  loss -0.10000"
        "  grad norm 1.5000  tokens/s 321  seconds rollout 1.25 update_actor 2.50"
    )
    assert step_line({"val-core/toy/reward/mean": 0.5}, 0) == "step 0  val-core/toy/reward/mean 0.5000"


def test_without_a_terminal_the_console_prints_plain_lines(tmp_path):
    out = io.StringIO()
    backend = ConsoleBackend(run(tmp_path, total_steps=2), Console(file=out, soft_wrap=True, width=40))
    backend.log(METRICS, 1)
    backend.finish()
    assert out.getvalue() == step_line(METRICS, 1, 2) + "\n"


def test_on_a_terminal_there_is_a_progress_bar(tmp_path):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200, color_system=None)
    backend = ConsoleBackend(run(tmp_path, total_steps=4), console)
    backend.log(METRICS, 1)
    backend.progress.refresh()
    backend.finish()
    assert "1/4" in out.getvalue()
    assert "step 1/4  reward 0.2500" in out.getvalue()


def test_tensorboard_scalars_are_read_back(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tracking(tmp_path, "tensorboard") as tracker:
        for step in (1, 2):
            tracker.log({"critic/score/mean": step / 2}, step)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("critic/score/mean")] == [(1, 0.5), (2, 1.0)]


def test_an_unknown_backend_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="'swanlab' is not one of console, jsonl, tensorboard, wandb, mlflow"):
        tracking(tmp_path, "console", "swanlab")


def test_a_run_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"trainer\.default_local_dir='.*file/run' cannot be made a folder: Not a"):
        tracking(tmp_path / "file" / "run", "jsonl")


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_backend_that_is_not_installed_names_the_extra(tmp_path, name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)  # an import of it fails, whether it is installed or not
    with pytest.raises(ConfigError, match=rf"{name}.*verlift\[tracking\]"):
        tracking(tmp_path, name)


def test_a_config_and_one_name_are_taken_as_they_come(tmp_path):
    config = OmegaConf.create({"a": 1, "b": "${a}"})
    tracker = Tracking("project", "experiment", "jsonl", config, str(tmp_path))
    tracker.finish()
    tracker.finish()
    assert lines(tmp_path) == []
