"""Weights, rejection and metrics worked out by hand."""

import math

import pytest
import torch

from shared_algos.rollout_correction import RolloutCorrectionConfig, correct, off_policy_metrics
from shared_algos.segments import Segments

SEGMENTS = Segments.from_lengths([3, 2])
RATIOS = torch.tensor([4.0, 0.5, 9.0, 1.0, 2.0], dtype=torch.float64)  # training over rollout probability
MASK = torch.tensor([1, 1, 0, 1, 1])


def corrected(mask=MASK, **settings):
    rollout = torch.tensor([-1.0, -2.0, -3.0, -4.0, -5.0], dtype=torch.float64)
    return correct(rollout + RATIOS.log(), rollout, mask, SEGMENTS, RolloutCorrectionConfig(**settings))


@pytest.mark.parametrize(
    ("level", "threshold", "expected"),
    [
        ("token", 3.0, [3, 0.5, 0, 1, 2]),
        ("token", "0.6_3.0", [0, 0, 0, 1, 2]),
        ("sequence", 1.5, [1.5, 1.5, 0, 1.5, 1.5]),
        ("sequence", 10, [2, 2, 0, 2, 2]),
        ("sequence", "0.5_1.5", [0, 0, 0, 0, 0]),
    ],
)
def test_weights(level, threshold, expected):
    correction = corrected(rollout_is=level, rollout_is_threshold=threshold)
    assert correction.weights.tolist() == pytest.approx(expected)
    assert correction.response_mask.equal(MASK)


def test_normalised_weights_have_mean_one():
    by_token = corrected(rollout_is="token", rollout_is_threshold=3.0, rollout_is_batch_normalize=True)
    assert by_token.weights.tolist() == pytest.approx([24 / 13, 4 / 13, 0, 8 / 13, 16 / 13])
    assert by_token.metrics["rollout_corr/rollout_is_batch_norm_factor"] == pytest.approx(6.5 / 4)
    by_row = corrected(
        mask=torch.tensor([1, 0, 0, 1, 1]),
        rollout_is="sequence",
        rollout_is_threshold=9.0,
        rollout_is_batch_normalize=True,
    )
    assert by_row.weights.tolist() == pytest.approx([4 / 3, 0, 0, 2 / 3, 2 / 3])  # rows weigh 4 and 2, mean 3


LOG2 = math.log(2)
K3 = [4 - 1 - 2 * LOG2, 0.5 - 1 + LOG2, 0.0, 2 - 1 - LOG2]  # of the mask-1 tokens


@pytest.mark.parametrize(
    ("mode", "threshold", "expected"),
    [
        ("token_k1", "0.3_2.1", [0, 1, 0, 1, 1]),  # rollout over training: 1/4, 2, 1, 1/2
        ("token_k1", "0.2_1.9", [1, 0, 0, 1, 1]),
        ("token_k2", 0.5 * LOG2**2 + 0.01, [0, 1, 0, 1, 1]),
        ("token_k3", K3[1] + 0.01, [0, 1, 0, 1, 0]),
        ("seq_sum_k1", "0.6_3", [0, 0, 0, 0, 0]),  # both rows have product 1/2
        ("seq_sum_k2", 0.5 * LOG2**2 + 0.01, [0, 0, 0, 1, 1]),
        ("seq_sum_k3", K3[0] + K3[1] - 0.01, [0, 0, 0, 1, 1]),
        ("seq_mean_k1", "0.6_3", [1, 1, 0, 1, 1]),
        ("seq_mean_k2", 0.25 * LOG2**2 + 0.01, [0, 0, 0, 1, 1]),
        ("seq_mean_k3", (K3[0] + K3[1]) / 2 - 0.01, [0, 0, 0, 1, 1]),
        ("seq_max_k2", 2 * LOG2**2 - 0.01, [0, 0, 0, 1, 1]),
        ("seq_max_k3", K3[0] - 0.01, [0, 0, 0, 1, 1]),
        ("token_k3,seq_max_k2", "0.29,0.9", [0, 0, 0, 1, 0]),
    ],
)
def test_rejection(mode, threshold, expected):
    correction = corrected(rollout_rs=mode, rollout_rs_threshold=threshold)
    assert correction.weights is None
    assert correction.response_mask.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float32])
def test_the_mask_keeps_its_dtype_and_the_one_that_came_in_its_values(dtype):
    mask = MASK.to(dtype)
    rejected = corrected(mask=mask, rollout_rs="token_k1", rollout_rs_threshold="0.3_2.1").response_mask
    assert rejected.dtype == dtype
    assert rejected.tolist() == [0, 1, 0, 1, 1]
    assert mask.equal(MASK.to(dtype))


def test_rejected_tokens_have_weight_zero_and_enter_the_mean_that_normalises():
    settings = {"rollout_is": "token", "rollout_is_threshold": 3.0, "rollout_is_batch_normalize": True}
    correction = corrected(rollout_rs="token_k1", rollout_rs_threshold="0.3_2.1", **settings)
    assert correction.weights.tolist() == pytest.approx([0, 4 / 13, 0, 8 / 13, 16 / 13])


def test_weights_have_the_dtype_of_the_log_probs_and_no_gradient():
    log_probs = torch.zeros(5, requires_grad=True)
    config = RolloutCorrectionConfig(rollout_is="sequence", rollout_rs="token_k2", rollout_rs_threshold=1)
    weights = correct(log_probs, torch.zeros(5), MASK, SEGMENTS, config).weights
    assert weights.dtype == torch.float32
    assert not weights.requires_grad


def test_metrics_of_weights():
    metrics = corrected(rollout_is="token", rollout_is_threshold="0.6_3.0").metrics
    expected = {
        "rollout_is_mean": 0.75,
        "rollout_is_max": 2,
        "rollout_is_min": 0,
        "rollout_is_std": math.sqrt((2 * 0.75**2 + 0.25**2 + 1.25**2) / 4),
        "rollout_is_eff_sample_size": 0.75**2 / 1.25,
        "rollout_is_oob_ratio": 0.5,
        "rollout_is_ratio_fraction_high": 0.25,
        "rollout_is_ratio_fraction_low": 0.25,
        "rollout_is_seq_mean": 0.75,
        "rollout_is_seq_std": 1.5 / math.sqrt(2),
        "rollout_is_seq_max_deviation": 1,
        "rollout_is_seq_fraction_high": 0,
        "rollout_is_seq_fraction_low": 0,
    }
    for name, value in expected.items():
        assert metrics[f"rollout_corr/{name}"] == pytest.approx(value), name


def test_metrics_of_rejection():
    metrics = corrected(rollout_rs="token_k1,seq_max_k2", rollout_rs_threshold="0.3_1.9,0.9").metrics
    expected = {
        "token_k1_masked_fraction": 0.5,
        "token_k1_seq_masked_fraction": 0.5,
        "token_k1_fraction_high": 0.25,
        "token_k1_fraction_low": 0.25,
        "token_k1_mean": -LOG2 / 2,
        "token_k1_seq_mean": -LOG2 / 2,
        "seq_max_k2_masked_fraction": 0.5,
        "seq_max_k2_fraction_high": 0.5,
        "seq_max_k2_fraction_low": 0,
        "seq_max_k2_max": 2 * LOG2**2,
        "seq_max_k2_std": (0.9 - 0.5 * LOG2**2) / 2,
        "masked_fraction": 0.5,
        "seq_masked_fraction": 0.5,
    }
    for name, value in expected.items():
        assert metrics[f"rollout_corr/rollout_rs_{name}"] == pytest.approx(value), name


def test_off_policy_metrics():
    log_probs = torch.tensor([-1.0, -3.0, 0.0])
    rollout = torch.tensor([-2.0, -2.0, -1.0])
    metrics = off_policy_metrics(log_probs, rollout, torch.ones(3), Segments.from_lengths([2, 1]))
    expected = {
        "training_log_ppl": 1,
        "training_ppl": (math.exp(2) + 1) / 2,
        "rollout_log_ppl": 1.5,
        "kl": -1 / 3,
        "k3_kl": (2 * math.e + 1 / math.e - 3 - 1) / 3,
        "log_ppl_diff": -0.5,
        "log_ppl_abs_diff": 0.5,
        "log_ppl_diff_max": 0,
        "log_ppl_diff_min": -1,
        "ppl_ratio": (1 + 1 / math.e) / 2,
        "chi2_token": (2 * math.e**2 + math.e**-2) / 3 - 1,
        "chi2_seq": (1 + math.e**2) / 2 - 1,
    }
    for name, value in expected.items():
        assert metrics[f"rollout_corr/{name}"] == pytest.approx(value), name
    unknown = off_policy_metrics(log_probs, None, torch.ones(3), Segments.from_lengths([2, 1]))
    assert unknown.keys() == {"rollout_corr/training_ppl", "rollout_corr/training_log_ppl"}
