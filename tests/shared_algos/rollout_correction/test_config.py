"""Settings are read and checked when they are made; an error names the field, its value and what is allowed."""

import math
from dataclasses import FrozenInstanceError

import pytest

from shared_algos.errors import AlgorithmError
from shared_algos.rollout_correction import REJECTION_MODES, RolloutCorrectionConfig
from shared_algos.rollout_correction.rejection import Rule
from shared_algos.rollout_correction.thresholds import Bounds

LOG4 = math.log(4)


def test_defaults_are_those_of_verls_yaml():
    config = RolloutCorrectionConfig()
    assert (config.rollout_is, config.rollout_rs, config.rollout_rs_threshold) == (None, None, None)
    assert (config.rollout_is_threshold, config.rollout_is_batch_normalize) == (2.0, False)
    assert (config.bypass_mode, config.loss_type) == (False, "ppo_clip")
    assert config.rules == ()
    with pytest.raises(FrozenInstanceError):
        config.bypass_mode = True


@pytest.mark.parametrize(
    ("threshold", "bounds"),
    [
        (2.0, Bounds(None, 2.0)),
        (5, Bounds(None, 5.0)),
        ("1e1", Bounds(None, 10.0)),
        (" 2 ", Bounds(None, 2.0)),
        ("0.5_5.0", Bounds(0.5, 5.0)),
        ("1_1", Bounds(1.0, 1.0)),
        (math.inf, Bounds(None, math.inf)),
    ],
)
def test_thresholds_of_weights(threshold, bounds):
    assert RolloutCorrectionConfig(rollout_is_threshold=threshold).weight_bounds == bounds


@pytest.mark.parametrize("threshold", [0, -1.0, True, None, math.nan, "", "x", "0.5_", "_2", "1_2_3", "0_2", [2.0]])
def test_thresholds_of_weights_that_are_refused(threshold):
    with pytest.raises(AlgorithmError) as error:
        RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=threshold)
    assert f"rollout_is_threshold is {threshold!r}" in str(error.value)
    assert "a positive number" in str(error.value)


def test_bounds_in_the_wrong_order():
    with pytest.raises(AlgorithmError, match=r"rollout_is_threshold is '3_2', whose lower bound 3.0 is above .* 2.0"):
        RolloutCorrectionConfig(rollout_is_threshold="3_2")


def test_every_mode_takes_a_number():
    for mode in REJECTION_MODES:
        (rule,) = RolloutCorrectionConfig(rollout_rs=mode, rollout_rs_threshold=2.0).rules
        assert rule == (Rule(mode, -math.log(2), math.log(2)) if mode.endswith("k1") else Rule(mode, None, 2.0))
    assert len(REJECTION_MODES) == 11


@pytest.mark.parametrize(
    ("modes", "threshold", "rules"),
    [
        ("token_k1", "0.5_4", [Rule("token_k1", math.log(0.5), LOG4)]),
        ("seq_sum_k1 , token_k2", "4,0.5", [Rule("seq_sum_k1", -LOG4, LOG4), Rule("token_k2", None, 0.5)]),
        ("token_k2,seq_max_k3", "0.5", [Rule("token_k2", None, 0.5), Rule("seq_max_k3", None, 0.5)]),
        ("token_k2,token_k3,token_k2", "0.5,0.1", [Rule("token_k2", None, 0.5), Rule("token_k3", None, 0.1)]),
    ],
    ids=["two bounds", "a list", "one for all", "twice"],
)
def test_rules(modes, threshold, rules):
    assert RolloutCorrectionConfig(rollout_rs=modes, rollout_rs_threshold=threshold).rules == tuple(rules)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollout_is": "tokens"}, "rollout_is is 'tokens'; did you mean 'token'? allowed are null, token, sequence"),
        ({"rollout_is": ""}, "rollout_is is ''; allowed are null, token, sequence"),
        (
            {"loss_type": "ppo-clip"},
            "loss_type is 'ppo-clip'; did you mean 'ppo_clip'? allowed are ppo_clip, reinforce",
        ),
        ({"bypass_mode": "yes"}, "bypass_mode is 'yes'; it must be true or false"),
        ({"rollout_is_batch_normalize": 1}, "rollout_is_batch_normalize is 1; it must be true or false"),
        ({"rollout_rs": "seq_mean_k4"}, "rollout_rs is 'seq_mean_k4'; did you mean 'seq_mean_k3'? allowed are null, a"),
        ({"rollout_rs": "token_k1,geometric"}, "rollout_rs is 'geometric'; allowed are"),
        ({"rollout_rs": "seq_max_k1"}, "rollout_rs is 'seq_max_k1'; did you mean"),
        ({"rollout_rs": ""}, "rollout_rs is ''"),
        ({"rollout_rs": ["token_k1"]}, "rollout_rs is ['token_k1']"),
        (
            {"rollout_rs": "token_k1", "rollout_rs_threshold": None},
            "rollout_rs is 'token_k1' and rollout_rs_threshold is null; set one threshold a mode",
        ),
        (
            {"rollout_rs": "token_k2,token_k3,seq_sum_k2", "rollout_rs_threshold": "1,2"},
            "rollout_rs_threshold '1,2' has 2 values for the 3 modes of rollout_rs 'token_k2,token_k3,seq_sum_k2'; "
            "give one for all or 3",
        ),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": ""}, "has 0 values for the 1 modes"),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": "0.5_2"}, "only *_k1 has two bounds"),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": 0}, "rollout_rs_threshold of token_k2 is 0; it must be a"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": "2_0.5"}, "lower bound 2.0 is above its upper bound 0.5"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5"}, "one finite number from 1, whose reciprocal is"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": math.inf}, "one finite number from 1, whose reciprocal"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(AlgorithmError) as error:
        RolloutCorrectionConfig(**{"rollout_rs_threshold": 2.0} | settings)
    assert message in str(error.value)
