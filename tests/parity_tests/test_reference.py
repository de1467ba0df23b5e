"""The reference step against what both trainers recorded: a fault that they share would show here and nowhere else.

**Why weights can agree within 1e-5.** The first updates of AdamW move a weight by ``lr * g / (|g| + eps)``. Where ``g``
is far above ``eps`` (1e-8) its rounding error cancels out; where it is as small as ``eps``, an error of 1e-10 (float32
sums in another order) moves the weight by ``lr * error / eps``, one per cent of ``lr``. Measured on such runs: 0.8 to
2.1 %, which is 8e-6 or more at ``lr=1e-3``, at the bound, and at most 2e-6 at ``lr=1e-4``. An update moves a weight by
about ``lr``. So ``lr=1e-4`` with torch's own ``eps`` keeps the bound between noise and a wrong update: five times the
one, a tenth of the other.

Clip ranges are narrow because so small a step leaves ratios and values near the old ones: clipping must take part.
The gradient norms lie above ``grad_clip``, and ``weight_decay`` is large enough for four updates to show it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from parity_tests.capture import Capture
from parity_tests.reference_settings import settings_of
from parity_tests.run import run_parity
from parity_tests.third_opinion import TOLERANCE, against_reference
from runtime.config import load_config
from verlift.parity import app

pytestmark = pytest.mark.ray

ACTOR = "actor_rollout_ref.actor"
OVERRIDES = [
    "data.train_batch_size=4",
    # Long enough that some responses end by themselves, one token in a hundred being the end.
    "data.max_response_length=48",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.temperature=0.7",
    f"{ACTOR}.ppo_mini_batch_size=2",
    f"{ACTOR}.ppo_epochs=2",
    f"{ACTOR}.clip_ratio_low=0.001",
    f"{ACTOR}.clip_ratio_high=0.001",
    f"{ACTOR}.clip_ratio_c=1.005",
    f"{ACTOR}.grad_clip=0.1",
    f"{ACTOR}.optim.lr=1e-4",
    f"{ACTOR}.optim.weight_decay=0.5",
    "critic.cliprange_value=0.001",
    "critic.optim.lr=1e-4",
    "critic.grad_clip=0.1",
    "algorithm.gamma=0.98",
    "algorithm.lam=0.9",
    "trainer.logger=[jsonl]",
]

SHARED_FIELDS = {"old_log_probs", "entropy", "advantages", "returns", "actor/loss", "actor/grad_norm"}
FIELDS = {"grpo": SHARED_FIELDS, "gae": SHARED_FIELDS | {"values", "critic/loss", "critic/grad_norm"}}

SHARED_FAULTS = [
    ("temperature", 1.0, "old_log_prob"),
    ("actor.clip", (0.2, 0.001, 1.005), "update_actor"),
    ("actor.clip", (0.001, 0.2, 1.005), "update_actor"),
    ("actor.clip", (0.001, 0.001, 3.0), "update_actor"),
    ("actor.rows", 8, "update_actor"),
    ("actor.grad_clip", 10.0, "update_actor"),
    ("actor.weight_decay", 0.0, "update_actor"),
    ("actor.lr", 1.1e-4, "update_actor"),
]
FAULTS = {
    "grpo": [*SHARED_FAULTS, ("norm_adv_by_std_in_grpo", False, "advantage")],
    "gae": [
        *SHARED_FAULTS,
        ("seed", 1, "values"),
        ("lam", 0.95, "advantage"),
        ("gamma", 1.0, "advantage"),
        ("critic.clip", 0.5, "update_critic"),
    ],
}


@pytest.fixture(scope="module", params=[("grpo", 1), ("gae", 2)], ids=["grpo, 1 rank", "gae, 2 ranks"])
def run(request, cluster, tmp_path_factory) -> tuple[str, Path]:  # noqa: ARG001
    """The estimator, and one step of both trainers with it."""
    estimator, ranks = request.param
    directory = tmp_path_factory.mktemp(estimator) / "run"
    overrides = [*OVERRIDES, f"algorithm.adv_estimator={estimator}", f"trainer.n_gpus_per_node={ranks}"]
    assert run_parity(load_config("tiny", overrides).config, directory, steps=1).line == "PARITY PASS"
    return estimator, directory


@pytest.mark.parametrize("side", ["legacy", "v1"])
def test_the_reference_agrees(run, side):
    estimator, directory = run
    capture = Capture.open(directory / side)
    verdict = against_reference(capture)
    assert verdict.line == "PARITY PASS"
    assert {field.field for field in verdict.fields if field.stage != "weights"} == FIELDS[estimator]
    assert {field.field for field in verdict.fields if field.stage == "weights"} == trained_weights(capture)
    assert max(field.max_abs for field in verdict.fields) < TOLERANCE


def test_the_reference_agrees_on_rows_that_were_drawn(cluster, tmp_path):  # noqa: ARG001
    """FACTS case 5: tokens, log-probs and advantages of a drawn row are of one trajectory, in both trainers."""
    overrides = [*OVERRIDES, "algorithm.adv_estimator=gae", "algorithm.use_pf_ppo=true"]
    assert run_parity(load_config("tiny", overrides).config, tmp_path / "run", steps=1).line == "PARITY PASS"
    for side in ("legacy", "v1"):
        capture = Capture.open(tmp_path / "run" / side)
        drawn = capture.stage(1, "resample").series["row_order"]
        assert len(set(drawn)) < len(drawn)
        assert against_reference(capture).line == "PARITY PASS"


def trained_weights(capture: Capture) -> set[str]:
    """Every weight of every model, all of which the step moved."""
    before = capture.stage(0, "initial").digests
    after = {}
    for stage in capture.index[1]:
        after |= capture.stage(1, stage).digests
    assert all(after[name] != before[name] for name in before)
    return set(after)


def test_the_run_is_worth_an_opinion(run):
    """Responses are ragged; ratios, values and gradients were clipped."""
    estimator, directory = run
    step = {name: Capture.open(directory / "v1").stage(1, name) for name in ("rollout", "update_actor")}
    assert len(set(step["rollout"].responses.lengths.tolist())) > 1
    series = dict(step["update_actor"].series)
    if estimator == "gae":
        series |= Capture.open(directory / "v1").stage(1, "update_critic").series
        assert max(series["critic/vf_clipfrac"]) > 0
        assert max(series["critic/grad_norm"]) > 0.1
    assert max(series["actor/pg_clipfrac"]) > 0
    assert max(series["actor/pg_clipfrac_lower"]) > 0
    assert min(series["actor/grad_norm"]) > 0.1


def test_a_reference_with_another_setting_disagrees_at_its_stage(run):
    estimator, directory = run
    capture = Capture.open(directory / "v1")
    wrong = {}
    for key, value, stage in FAULTS[estimator]:
        first = against_reference(capture, settings=changed(settings_of(capture.config), key, value)).first
        if first is None or first.stage != stage:
            wrong[key, value] = f"expected {stage}, named {first and first.stage}"
    assert not wrong


def changed(settings, key, value):
    *group, name = key.split(".")
    inner = settings[group[0]] if group else settings
    inner[name] = value
    return settings


def test_the_command_tells_the_first_field_outside(run):
    _, directory = run
    agreed = CliRunner().invoke(app, ["reference", str(directory / "legacy")])
    assert (agreed.exit_code, agreed.stdout.splitlines()[-1]) == (0, "PARITY PASS")
    another = CliRunner().invoke(app, ["reference", str(directory / "legacy"), "--model", "tiny://model?seed=1"])
    assert another.exit_code == 1
    key = Capture.open(directory / "legacy").stage(1, "rollout").keys[0]
    place = f"PARITY DIVERGED at step 1 stage old_log_prob field old_log_probs key {key} token 0: reference -"
    assert another.stdout.splitlines()[-1].startswith(place)
    assert CliRunner().invoke(app, ["reference", str(directory)]).exit_code == 2
