"""Validation figures have verl's names, and generations end up in files."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from omegaconf import OmegaConf

from legacy.generations import GenerationLogs
from runtime.errors import ConfigError


@pytest.fixture
def trainer():
    trainer = GenerationLogs()
    trainer.config = OmegaConf.create({"trainer": {"log_val_generations": 2, "logger": ["console"]}})
    trainer.global_steps = 3
    shown = trainer.shown = []
    trainer.validation_generations_logger = SimpleNamespace(log=lambda *arguments: shown.append(arguments))
    return trainer


def test_the_mean_of_all_answers_is_a_core_figure_and_all_else_aux(trainer):
    infos = {"reward": [1.0, 0.0, 1.0, 1.0], "acc": [1.0, 0.0, 0.0, 0.0]}
    metrics = trainer._val_metrics_update(
        ["math"] * 4, ["a", "a", "b", "b"], infos, [np.array([2, 2]), np.array([4, 2])]
    )
    assert metrics["val-core/math/acc/mean@2"] == 0.25
    assert metrics["val-aux/math/reward/mean@2"] == 0.75
    assert "val-core/math/acc/best@2/mean" in metrics
    assert "val-core/math/reward/mean@2" not in metrics
    assert metrics["val-aux/num_turns/max"] == 4


def test_samples_are_the_same_ones_each_time(trainer):
    prompts, answers, scores = [f"p{n}" for n in range(9)], list("abcdefghi"), [0.5] * 9
    trainer._maybe_log_val_generations(prompts, answers, scores)
    trainer._maybe_log_val_generations(prompts[::-1], answers[::-1], scores)
    (_, first, step), (_, second, _) = trainer.shown
    assert step == 3
    assert len(first) == 2
    assert first == second


def test_a_generation_is_one_line_of_a_file(trainer, tmp_path):
    infos = {"acc": [np.float32(1.0), np.float32(0.0)], "of another length": [1]}
    trainer._dump_generations(["p", "q"], ["a", "b"], ["x", None], [1.0, 0.0], infos, str(tmp_path / "new"))
    trainer._shutdown_dump_executor()
    lines = [json.loads(line) for line in (tmp_path / "new" / "3.jsonl").read_text().splitlines()]
    assert lines[1] == {"input": "q", "output": "b", "gts": None, "score": 0.0, "step": 3, "acc": 0.0}


def test_what_could_not_be_written_is_told_and_the_next_file_is_written(trainer, tmp_path):
    (tmp_path / "file").write_text("")
    trainer._dump_generations(["p"], ["a"], ["x"], [1.0], {}, str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"3\.jsonl.*rollout_data_dir"):
        trainer._shutdown_dump_executor()
    trainer._dump_generations(["p"], ["a"], ["x"], [1.0], {}, str(tmp_path / "new"))
    trainer._shutdown_dump_executor()
    assert (tmp_path / "new" / "3.jsonl").exists()


def test_parts_of_a_validation_are_merged(trainer):
    part = {
        "data_sources": [["math"] * 2],
        "sample_uids": ["a", "b"],
        "sample_turns": [np.array([2, 2])],
        "reward_extra_infos_dict": {"reward": [1.0, 0.0]},
    }
    other = {**part, "sample_uids": ["c", "d"], "reward_extra_infos_dict": {"reward": [1.0, 1.0]}}
    assert trainer._merge_validation_results(part, other)["val-core/math/reward/mean@1"] == 0.75
    assert trainer._merge_validation_results(part, None)["val-core/math/reward/mean@1"] == 0.5
    assert trainer._merge_validation_results(None, None) == {}
