"""KL, its controllers, the value loss, denominators, settings."""

import pytest
import torch

from shared_algos.aggregation import AGGREGATIONS, Denominators, aggregate, to_float32
from shared_algos.errors import AlgorithmError
from shared_algos.kl import AdaptiveKLController, FixedKLController, apply_kl_penalty, kl_penalty
from shared_algos.policy_losses import PolicyLossConfig
from shared_algos.segments import Segments
from shared_algos.value_loss import ValueLossConfig, ValueLossInputs, compute_value_loss


@pytest.fixture
def batch(random_batch):
    return random_batch(7, torch.float64)


def test_k3_has_digits_in_float32_where_the_policies_are_close():
    log_ratio = torch.tensor([1e-3, -1e-4, 1e-5])
    estimate = kl_penalty(log_ratio, torch.zeros(3), "k3")
    torch.testing.assert_close(estimate, log_ratio.square() / 2, rtol=1e-2, atol=0)


def test_kl_in_reward_keeps_a_score_on_a_masked_token_and_skips_padding_in_the_mean():
    segments, mask = Segments.from_lengths([2, 1, 2]), torch.tensor([1, 0, 1, 0, 0])
    scores = torch.tensor([0.0, 1.0, 0.5, 0.0, 0.0])
    old = torch.tensor([0.2, torch.nan, 0.4, torch.nan, torch.nan])
    rewards, mean_kl = apply_kl_penalty(scores, old, torch.zeros(5), mask, segments, 0.5, "kl")
    torch.testing.assert_close(rewards, torch.tensor([-0.1, 1.0, 0.3, 0.0, 0.0]))
    assert float(mean_kl) == pytest.approx(0.3)


def test_a_fixed_controller_stays():
    controller = FixedKLController(0.01)
    controller.update(5.0, 100)
    assert controller.value == 0.01


@pytest.mark.parametrize(("current", "factor"), [(0.105, 1.0005), (9.0, 1.002), (0.0, 0.998)])
def test_an_adaptive_controller_follows_its_target_by_at_most_a_fifth(current, factor):
    controller = AdaptiveKLController(0.01, target=0.1, horizon=10_000)
    controller.update(current, 100)
    assert controller.value == pytest.approx(0.01 * factor)


def test_denominators_as_numbers_or_tensors_are_the_same(batch):
    counted = batch.denominators()
    numbers = Denominators(float(counted.tokens), float(counted.sequences), 12.0)
    for mode in AGGREGATIONS:
        expected = aggregate(batch.new, batch.mask, batch.segments, mode, counted)
        assert aggregate(batch.new, batch.mask, batch.segments, mode, numbers).equal(expected)


def test_a_total_half_way_between_two_float32_is_rounded_alike_whatever_its_last_bit():
    half_way = 1 + 2.0**-24 + 2.0**-23  # the even neighbour is above
    noise = 2.0**-52
    totals = torch.tensor([half_way - noise, half_way, half_way + noise], dtype=torch.float64)
    for factor in (1, -3, 2.0**-100, 2.0**100):
        assert len(set(to_float32(totals * factor).tolist())) == 1
    assert to_float32(totals).tolist() == [1 + 2.0**-22] * 3
    assert len(set(totals.float().tolist())) == 2


def test_other_totals_are_cast_as_they_are():
    totals = torch.cat([torch.randn(1000, dtype=torch.float64), torch.tensor([0, 1e-30, -torch.inf, 3e38])])
    assert to_float32(totals).equal(totals.float())
    assert to_float32(torch.tensor(torch.nan, dtype=torch.float64)).isnan()


def test_value_loss_takes_the_worse_of_clipped_and_unclipped():
    """Values 0, predictions 1 (clipped to 0.5): the target 3 is farther from 0.5, the target 0 farther from 1."""
    segments, mask, zeros = Segments.from_lengths([2]), torch.ones(2), torch.zeros(2)
    denominators = Denominators.count(mask, segments, 2)
    inputs = ValueLossInputs(torch.ones(2), zeros, torch.tensor([3.0, 0.0]), mask, segments, denominators)
    output = compute_value_loss(inputs, ValueLossConfig(cliprange_value=0.5))
    assert float(output.loss) == 0.5 * (2.5**2 + 1.0**2) / 2
    assert output.metrics == {"critic/vf_clipfrac": 0.5, "critic/vpred_mean": 1.0}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PolicyLossConfig(loss_agg_mode="token"), "unknown loss_agg_mode 'token'; known are token-mean"),
        (lambda: PolicyLossConfig(clip_ratio_c=1.0), "clip_ratio_c must be greater than 1, got 1.0"),
        (lambda: PolicyLossConfig(tau_pos=0), "tau_pos must be positive, got 0"),
        (lambda: PolicyLossConfig(tau_neg=float("nan")), "tau_neg must be a finite number, got nan"),
        (lambda: PolicyLossConfig(tau_neg=None), "tau_neg must be a finite number, got None"),
        (lambda: PolicyLossConfig(clip_cov_ratio=0.0), "clip_cov_ratio must be positive, got 0.0"),
        (lambda: PolicyLossConfig(clip_cov_lb=6.0), "clip_cov_lb must be below clip_cov_ub, 5.0, got 6.0"),
        (lambda: PolicyLossConfig(kl_cov_ratio=1.5), "kl_cov_ratio must be above 0 and at most 1, got 1.5"),
        (lambda: PolicyLossConfig(ppo_kl_coef=-0.1), "ppo_kl_coef must be at least 0, got -0.1"),
        (lambda: PolicyLossConfig(dro_beta=0.0), "dro_beta must be positive, got 0.0"),
        (lambda: ValueLossConfig(cliprange_value=0.0), "cliprange_value must be positive, got 0.0"),
        (lambda: AdaptiveKLController(0.1, 0.0, 10), "positive target_kl and horizon, got 0.0 and 10"),
        (lambda: kl_penalty(torch.zeros(1), torch.zeros(1), "k4"), "unknown KL penalty 'k4'"),
    ],
)
def test_bad_settings_are_named(build, message):
    with pytest.raises(AlgorithmError, match=message):
        build()
