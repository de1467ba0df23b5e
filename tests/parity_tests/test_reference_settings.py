"""The reference step by itself: what it imports, its right values by hand, and the configs that it refuses."""

import ast
import inspect
import math

import pytest
import torch

from parity_tests import reference
from parity_tests.reference_settings import settings_of
from runtime.errors import CaptureError

GRPO = {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": True}


def test_it_is_short_and_stands_on_nothing_of_ours():
    source = inspect.getsource(reference)
    assert len(source.splitlines()) <= 120
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in nodes}
    assert imported == {"typing", "torch", "transformers", "parity_tests.capture"}


def row(uid, score, mask=(True, True), **columns):
    """A trajectory with its score on the last token."""
    rewards = torch.zeros(len(mask), dtype=torch.float64)
    rewards[-1] = score
    return {"uid": uid, "mask": torch.tensor(mask), "rewards": rewards, **columns}


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([1, 1, 0], [0.57735, 0.57735, -1.1547]), ([5], [5]), ([3.3] * 7, [0] * 7)],
    ids=["std", "alone", "equal"],
)
def test_grpo_by_hand(scores, expected):
    rows = [row("u", score) for score in scores]
    reference.grpo(rows, GRPO)
    found = torch.stack([each["advantages"] for each in rows])
    assert torch.allclose(found, torch.tensor(expected).double()[:, None].expand(-1, 2), atol=1e-5)


def test_a_row_without_generated_tokens_is_in_no_group():
    rows = [row("u", 100, mask=(False, False)), row("u", 1), row("other", 7)]
    reference.grpo(rows, GRPO)
    assert rows[0]["advantages"].tolist() == [0, 0]
    assert rows[1]["advantages"][0] == pytest.approx(0.999999)


def test_gae_by_hand():
    """The outcome sits on a masked token and reaches all three generated ones; advantages are whitened."""
    values = torch.tensor([0.5, 0.0, 0.25, 9.0, 9.0])
    rows = [row("u", 1, mask=(True, True, True, False, False), values=values)]
    reference.gae(rows, {"gamma": 1.0, "lam": 1.0})
    assert rows[0]["returns"].tolist() == [1, 1, 1, 0, 0]
    assert rows[0]["advantages"].tolist() == pytest.approx([-1, 1, 0, 0, 0], abs=1e-6)


def test_gae_discounts():
    rows = [row("u", 1, mask=(True, True, True), values=torch.zeros(3))]
    reference.gae(rows, {"gamma": 0.5, "lam": 0.5})
    assert rows[0]["returns"].tolist() == [0.0625, 0.25, 1]


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss"),
    [(1, 1.1, -1.1), (1, 1.5, -1.2), (1, 0.5, -0.5), (-1, 0.5, 0.8), (-1, 2, 2), (-1, 5, 3)],
    ids=["inside", "above", "below", "below, negative", "above, negative", "dual clip"],
)
def test_policy_loss_by_hand(monkeypatch, advantage, ratio, loss):
    monkeypatch.setattr(reference, "log_probs", lambda *_: (torch.tensor([math.log(ratio)]), None))
    columns = {"old_log_probs": torch.zeros(1), "advantages": torch.tensor([float(advantage)])}
    settings = {"temperature": 1.0, "actor": {"clip": (0.2, 0.2, 3.0)}}
    assert reference.token_loss("actor", None, columns, settings).item() == pytest.approx(loss)


def tiny_config(*overrides):
    from omegaconf import OmegaConf

    from runtime.config import load_config

    return OmegaConf.to_container(load_config("tiny", overrides).config, resolve=True)


def test_settings_are_read_off_the_config():
    actor = "actor_rollout_ref.actor"
    settings = settings_of(
        tiny_config(f"{actor}.clip_ratio_high=0.3", "++" + f"{actor}.optim.override_optimizer_config={{eps: 1e-6}}")
    )
    assert settings["actor"]["clip"] == (0.2, 0.3, 3.0)
    assert settings["actor"]["rows"] == 16
    assert settings["actor"]["eps"] == 1e-6
    assert settings["critic"]["eps"] == 1e-8


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("algorithm.rollout_correction.rollout_is=token", "algorithm.rollout_correction.rollout_is"),
        ("algorithm.rollout_correction.bypass_mode=true", "algorithm.rollout_correction.bypass_mode"),
        ("algorithm.adv_estimator=grpo_vectorized", "algorithm.adv_estimator"),
        ("actor_rollout_ref.actor.loss_agg_mode=token-sum", "actor_rollout_ref.actor.loss_agg_mode"),
        ("actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.use_kl_loss"),
        ("actor_rollout_ref.actor.shuffle=true", "actor_rollout_ref.actor.shuffle"),
        ("critic.enable=true", "critic.enable"),
        ("trainer.critic_warmup=1", "trainer.critic_warmup"),
    ],
)
def test_what_it_does_not_compute_is_refused(override, key):
    with pytest.raises(CaptureError, match=key):
        settings_of(tiny_config(override))
