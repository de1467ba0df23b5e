"""Gradients by finite differences, declared settings, KL controllers."""

import pytest
import torch

from shared_algos.aggregation import AGGREGATIONS, Denominators, aggregate
from shared_algos.errors import AlgorithmError, MissingInputError, UnknownAlgorithmError
from shared_algos.kl import KL_PENALTIES, AdaptiveKLController, FixedKLController, apply_kl_penalty, kl_loss, kl_penalty
from shared_algos.policy_losses import (
    POLICY_LOSSES,
    PolicyLossConfig,
    PolicyLossInputs,
    compute_policy_loss,
    register_policy_loss,
)
from shared_algos.segments import Segments
from shared_algos.value_loss import ValueLossConfig, ValueLossInputs, compute_value_loss

modes = pytest.mark.parametrize("mode", AGGREGATIONS)
UNBIASED = [kind for kind in KL_PENALTIES if not kind.endswith("+")]


@pytest.fixture
def batch(random_batch):
    return random_batch(7, torch.float64)


@modes
@pytest.mark.parametrize("name", POLICY_LOSSES.names())
def test_policy_loss_gradient(batch, name, mode):
    def loss(log_probs):
        inputs = PolicyLossInputs(
            log_probs, batch.old, batch.targets, batch.mask, batch.segments, batch.denominators(), batch.values.exp()
        )
        return compute_policy_loss(name, inputs, PolicyLossConfig(loss_agg_mode=mode)).loss

    assert torch.autograd.gradcheck(loss, (batch.new.requires_grad_(),))


@modes
def test_value_loss_gradient(batch, mode):
    def loss(predictions):
        inputs = ValueLossInputs(
            predictions, batch.old, batch.targets, batch.mask, batch.segments, batch.denominators()
        )
        return compute_value_loss(inputs, ValueLossConfig(loss_agg_mode=mode)).loss

    assert torch.autograd.gradcheck(loss, (batch.new.requires_grad_(),))


@pytest.mark.parametrize("kind", UNBIASED)
def test_kl_loss_gradient(batch, kind):
    def loss(log_probs):
        return kl_loss(
            log_probs, batch.old, batch.mask, batch.segments, batch.denominators(), kind, "seq-mean-token-mean"
        )

    assert torch.autograd.gradcheck(loss, (batch.new.requires_grad_(),))


@pytest.mark.parametrize("kind", UNBIASED)
def test_a_plus_keeps_the_value_and_takes_the_gradient_of_k2(batch, kind):
    new = batch.new.requires_grad_()
    plain, straight_through = kl_penalty(new, batch.old, kind), kl_penalty(new, batch.old, f"{kind}+")
    assert straight_through.equal(plain)
    (gradient,) = torch.autograd.grad(straight_through.sum(), new)
    torch.testing.assert_close(gradient, new - batch.old)


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


def test_clip_bounds_fall_back_to_clip_ratio():
    assert PolicyLossConfig(clip_ratio=0.3, clip_ratio_high=0.5).clip_range == (0.7, 1.5)


def test_dual_clip_and_its_metrics():
    """Ratios 5, 5 and 0.5: the dual clip holds the first at 3, the clip the second at 1.2, neither the third."""
    segments, mask = Segments.from_lengths([3]), torch.ones(3)
    log_probs, advantages = torch.tensor([5.0, 5.0, 0.5]).log(), torch.tensor([-1.0, 1.0, 1.0])
    denominators = Denominators.count(mask, segments, 3)
    inputs = PolicyLossInputs(log_probs, torch.zeros(3), advantages, mask, segments, denominators)
    output = compute_policy_loss("vanilla", inputs, PolicyLossConfig(loss_agg_mode="token-sum"))
    assert float(output.loss) == pytest.approx(3.0 - 1.2 - 0.5)
    assert {name: round(float(value), 6) for name, value in output.metrics.items()} == {
        "actor/pg_clipfrac": 0.333333,
        "actor/ppo_kl": round(-float(log_probs.mean()), 6),
        "actor/pg_clipfrac_lower": 0.333333,
    }


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
        (lambda: ValueLossConfig(cliprange_value=0.0), "cliprange_value must be positive, got 0.0"),
        (lambda: AdaptiveKLController(0.1, 0.0, 10), "positive target_kl and horizon, got 0.0 and 10"),
        (lambda: kl_penalty(torch.zeros(1), torch.zeros(1), "k4"), "unknown KL penalty 'k4'"),
    ],
)
def test_bad_settings_are_named(build, message):
    with pytest.raises(AlgorithmError, match=message):
        build()


def test_a_missing_input_is_named(batch, monkeypatch):
    monkeypatch.setattr(POLICY_LOSSES, "_entries", dict(POLICY_LOSSES._entries))
    register_policy_loss("weighted", needs={"rollout_is_weights"})(POLICY_LOSSES.get("vanilla").function)
    with pytest.raises(MissingInputError, match="policy loss 'weighted' needs 'rollout_is_weights'"):
        batch.loss("weighted", "token-mean", batch.denominators())
    with pytest.raises(UnknownAlgorithmError, match="unknown policy loss 'vanila'; did you mean 'vanilla'"):
        batch.loss("vanila", "token-mean", batch.denominators())
