"""Config groups as functions of recipes read them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from compat.algorithms.configs import ConfigView, settings_from
from shared_algos.advantages import AdvantageConfig
from shared_algos.policy_losses import PolicyLossConfig


@dataclass
class Inner:
    loss_mode: str = "vanilla"


@dataclass
class Group:
    clip_ratio: float = 0.3
    clip_ratio_low: float | None = None
    policy_loss: Inner = field(default_factory=Inner)


WHOLE = OmegaConf.create(
    {"group": {"clip_ratio": "${other}", "clip_ratio_low": None, "policy_loss": {"loss_mode": "vanilla"}}, "other": 0.3}
)
OmegaConf.set_struct(WHOLE, True)
OmegaConf.set_readonly(WHOLE, True)
FORMS = [WHOLE.group, Group(), {"clip_ratio": 0.3, "clip_ratio_low": None, "policy_loss": {"loss_mode": "vanilla"}}]


@pytest.mark.parametrize("group", FORMS, ids=["omegaconf", "dataclass", "dict"])
def test_every_way_of_reading(group):
    config = ConfigView(group)
    assert config.clip_ratio == config["clip_ratio"] == config.get("clip_ratio", 7) == 0.3
    assert config.clip_ratio_low is None
    assert config.policy_loss.loss_mode == config.policy_loss.get("loss_mode") == "vanilla"
    assert config.get("missing") is None
    assert config.get("missing", 3) == 3
    assert getattr(config, "missing", 3) == 3
    assert "clip_ratio" in config
    assert "missing" not in config
    assert bool(config)
    assert {**config}["clip_ratio"] == 0.3
    assert copy.deepcopy(config).clip_ratio == 0.3
    with pytest.raises(AttributeError, match=r"no key 'missing'; it has clip_ratio, clip_ratio_low, policy_loss"):
        _ = config.missing
    with pytest.raises(KeyError, match="missing"):
        _ = config["missing"]
    with pytest.raises(AttributeError):
        config.clip_ratio = 0.5


def test_the_first_group_goes_before_the_others():
    config = ConfigView({"a": 1}, None, {"a": 2, "b": 3})
    assert (config.a, config.b, len(config)) == (1, 3, 2)


def test_settings_are_read_under_verls_names():
    base = PolicyLossConfig(clip_ratio_c=5.0, source="kept")
    group = OmegaConf.create({"clip_ratio": 0.4, "policy_loss": {"kl_cov_ratio": 0.1}})
    settings = settings_from(group, base, loss_agg_mode="token-sum")
    assert (settings.clip_ratio, settings.clip_ratio_c, settings.kl_cov_ratio) == (0.4, 5.0, 0.1)
    assert (settings.loss_agg_mode, settings.source) == ("token-sum", "kept")
    assert settings_from(SimpleNamespace(clip_ratio=0.3), base).clip_ratio == 0.3


def test_settings_of_estimators():
    settings = settings_from(
        OmegaConf.create({"gamma": 0.9, "gdpo_reward_weights": [1, 2]}), AdvantageConfig(), lam=0.5
    )
    assert (settings.gamma, settings.lam, settings.gdpo_reward_weights) == (0.9, 0.5, (1, 2))
    assert settings_from(None, settings) == settings
