"""Training on the toy task: the reward rises, and both trainers log the same figures, validation included."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

import pytest

from runtime.config import load_config
from runtime.tracking import METRICS_FILE
from verlift.trainers import build_trainer

pytestmark = pytest.mark.ray

STEPS, TEST_FREQ = 12, 6
OVERRIDES = [
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={TEST_FREQ}",
    "trainer.val_before_train=true",
    "trainer.logger=[jsonl]",
]
TOLD_BY_A_CLOCK = ("timing_s/", "perf/throughput", "perf/time_per_step")
VALIDATION = "val-aux/verlift/toy_letters/reward/mean@1"

Figures = list[dict[str, float]]


@pytest.fixture(scope="module")
def figures(cluster, tmp_path_factory) -> dict[str, Figures]:  # noqa: ARG001
    """One line a step of each trainer's ``metrics.jsonl``, without times; the line of step 0 is validation alone."""
    return {name: trained(tmp_path_factory.mktemp(name), f"trainer.use_v1={name == 'v1'}") for name in ("legacy", "v1")}


def trained(directory: Path, switch: str) -> Figures:
    trainer = build_trainer(load_config("tiny", [*OVERRIDES, switch, f"trainer.default_local_dir={directory}"]).config)
    try:
        trainer.fit()
    finally:
        trainer.close()
    lines = map(json.loads, (directory / METRICS_FILE).read_text().splitlines())
    return [{key: line[key] for key in line if not key.startswith(TOLD_BY_A_CLOCK)} for line in lines]


@pytest.mark.parametrize("name", ["legacy", "v1"])
def test_the_reward_rises(figures, name):
    rewards = [line["critic/rewards/mean"] for line in figures[name][1:]]
    assert len(rewards) == STEPS
    assert mean(rewards[-3:]) >= mean(rewards[:3]) + 0.15


def test_both_trainers_log_the_same_figures(figures):
    assert [line["step"] for line in figures["v1"]] == list(range(STEPS + 1))
    assert "actor/grad_norm" in figures["v1"][1]
    assert figures["legacy"] == figures["v1"]


@pytest.mark.parametrize("name", ["legacy", "v1"])
def test_validation_is_logged_when_it_is_due_and_rises_too(figures, name):
    scores = {line["step"]: line[VALIDATION] for line in figures[name] if VALIDATION in line}
    assert list(scores) == list(range(0, STEPS + 1, TEST_FREQ))
    assert scores[STEPS] > scores[0]
