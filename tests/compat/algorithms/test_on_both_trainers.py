"""Estimators and losses of recipes train on both trainers, which agree, and are what their functions say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from compat.algorithms import get_adv_estimator_fn
from compat.padding import pad_right
from parity_tests.capture import Capture
from parity_tests.run import run_parity
from runtime.config import load_config
from runtime.config.roles import uses_critic
from runtime.recipe import with_modules_of_algorithms

pytestmark = pytest.mark.ray

GUIDE = Path(__file__).parents[3] / "docs" / "custom-functions.md"
ACTOR = "actor_rollout_ref.actor"
SMALL = [
    "data.train_batch_size=4",
    "actor_rollout_ref.rollout.n=2",
    f"{ACTOR}.ppo_mini_batch_size=2",
    "trainer.logger=[jsonl]",
]
STEPS = 2


def parity(directory, overrides):
    """What V1 did in two steps, once legacy was found to have done the same."""
    config = load_config("tiny", [*SMALL, *overrides]).config
    verdict = run_parity(config, directory / "run", steps=STEPS)
    assert verdict.line == "PARITY PASS"
    return config, Capture.open(directory / "run" / "v1")


def test_the_guides_recipe_through_external_lib(cluster, tmp_path, monkeypatch):  # noqa: ARG001
    blocks = re.findall(r"^```\w*\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (code,) = [block for block in blocks if block.startswith("# recipe.py\n")]
    (command,) = [block for block in blocks if block.startswith("verlift parity run")]
    (tmp_path / "recipe.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    overrides = [word for word in command.replace("\\\n", " ").split() if "=" in word]
    assert "actor_rollout_ref.model.external_lib=recipe.py" in overrides
    _, capture = parity(tmp_path, overrides)
    for step in range(1, STEPS + 1):
        assert_computed_by("leave_one_out", capture.stage(step, "advantage"))
        ratios = capture.stage(step, "update_actor").series["actor/ratio"]
        assert len(ratios) == 2
        assert ratios[0] == pytest.approx(1, abs=1e-5), "before the first update of a step the policy is the old one"


def assert_computed_by(name, stage):
    """The captured advantages are what the function gives for the captured rewards."""
    segments = stage.responses
    columns = {column: stage.read(column) for column in ("token_level_rewards", "response_mask")}
    padded = {column: pad_right(values, segments, int(segments.lengths.max())) for column, values in columns.items()}
    uids = np.array([key.uid for key in stage.keys], dtype=object)
    advantages, _ = get_adv_estimator_fn(name)(index=uids, **padded)
    assert advantages.any()
    torch.testing.assert_close(stage.read("advantages"), advantages[segments.rows, segments.positions])


def test_functions_of_old_versions_that_the_driver_imports_itself(cluster, recipe, tmp_path):  # noqa: ARG001
    """0.5's four values, an estimator that requires values, two ranks; the config does not name their file."""
    config, capture = parity(
        tmp_path,
        [
            "algorithm.adv_estimator=recipe_gae",
            f"{ACTOR}.policy_loss.loss_mode=recipe_dapo",
            f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm",
            f"{ACTOR}.ppo_micro_batch_size_per_gpu=1",
            "trainer.n_gpus_per_node=2",
        ],
    )
    assert uses_critic(config)
    assert list(config.runtime.import_modules) == []
    assert list(with_modules_of_algorithms(config).runtime.import_modules) == [recipe.__file__]
    assert {"values", "update_critic"} <= set(capture.index[1])
    series = capture.stage(1, "update_actor").series
    assert {"actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower"} <= series.keys()
    assert any(series["actor/ppo_kl"])
