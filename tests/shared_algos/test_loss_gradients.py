"""Gradients of every loss against finite differences, in float64.

Where a loss holds a factor constant on purpose (a detached importance weight, GSPO's straight-through ratio), its own
finite differences say nothing. There a surrogate is written by hand, with that factor frozen at the point looked at:
finite differences confirm the surrogate's gradient, and the loss must have the same gradient and the same value.
"""

import math

import pytest
import torch

from shared_algos.aggregation import AGGREGATIONS, aggregate
from shared_algos.entropy import entropy_loss
from shared_algos.kl import KL_PENALTIES, kl_loss, kl_penalty
from shared_algos.policy_losses import POLICY_LOSSES, PolicyLossConfig, PolicyLossInputs, compute_policy_loss
from shared_algos.rollout_correction import RolloutCorrectionConfig
from shared_algos.value_loss import ValueLossConfig, ValueLossInputs, compute_value_loss

modes = pytest.mark.parametrize("mode", AGGREGATIONS)
UNBIASED = [kind for kind in KL_PENALTIES if not kind.endswith("+")]

NARROW = {"clip_ratio_low": 0.05, "clip_ratio_high": 0.1, "clip_ratio_c": 1.3}
WIDE = {"clip_ratio_low": 0.4, "clip_ratio_high": 0.9, "clip_ratio_c": 2.0}
REINFORCE = RolloutCorrectionConfig(rollout_is="token", loss_type="reinforce")
SETTINGS = {
    "sapo": [{"tau_pos": 0.5, "tau_neg": 3.0}],
    "dro": [{"dro_beta": 0.01}, {"dro_beta": 2.0}],
    "kl_cov": [{"ppo_kl_coef": 0.0}, {"ppo_kl_coef": 1.0}],
    "bypass_mode": [{"rollout_correction": RolloutCorrectionConfig()} | NARROW, {"rollout_correction": REINFORCE}],
}
CASES = [(name, settings) for name in POLICY_LOSSES.names() for settings in SETTINGS.get(name, [NARROW, WIDE])]


@pytest.fixture
def batch(random_batch):
    batch = random_batch(7, torch.float64)
    return batch.take(torch.arange(9))


def policy_loss(name, batch, config):
    """The loss as a function of the log-probs, with random weights and every third token selected."""
    selected = torch.arange(len(batch.new)) % 3 == 0

    def loss(log_probs):
        columns = batch.old, batch.targets, batch.mask, batch.segments, batch.denominators()
        return compute_policy_loss(
            name, PolicyLossInputs(log_probs, *columns, batch.values.exp(), selected), config
        ).loss

    return loss


def weight_at(batch, token, name, config):
    """The importance weight that a token's policy gradient is multiplied by."""
    low, high = config.clip_distances
    new, old, advantage = (float(column[token]) for column in (batch.new, batch.old, batch.targets))
    ratio, p, q = math.exp(new - old), math.exp(new), math.exp(old)
    if name == "cispo":
        return min(max(ratio, 1 - low), 1 + high)
    divergence = abs(p - q)
    if name == "dppo_kl":
        divergence = q * math.log(q / p) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))
    rises = advantage > 0
    beyond = divergence > (high if rises else low) and (p > q if rises else p < q)
    return 0.0 if beyond else min(ratio, config.clip_ratio_c)


def weighted_policy_gradient(name, batch, config):
    """Weights frozen at ``batch.new``, times the log-prob: its derivative is the weight."""
    weights = [weight_at(batch, token, name, config) for token in range(len(batch.new))]
    weights = torch.tensor(weights, dtype=batch.new.dtype)
    return lambda log_probs: -batch.targets * weights * log_probs


def sequence_ratio(_, batch, config):
    """A token's ratio is its row's, frozen at ``batch.new``, times how far the token has moved from there."""
    of_row = []
    for new, old, mask in zip(*(batch.segments.split(c) for c in (batch.new, batch.old, batch.mask)), strict=True):
        kept = (new - old)[mask.bool()].tolist()
        of_row += [math.exp(sum(kept) / max(len(kept), 1))] * len(new)
    start, here = torch.tensor(of_row, dtype=batch.new.dtype), batch.new

    def token_loss(log_probs):
        ratio = start * (log_probs - here).exp()
        return torch.maximum(-batch.targets * ratio, -batch.targets * ratio.clamp(*config.clip_range))

    return token_loss


SURROGATES = dict.fromkeys(("cispo", "dppo_tv", "dppo_kl"), weighted_policy_gradient) | {"gspo": sequence_ratio}


@modes
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_policy_loss_gradient(batch, name, settings, mode):
    config = PolicyLossConfig(loss_agg_mode=mode, **settings)
    loss, new = policy_loss(name, batch, config), batch.new.clone().requires_grad_()
    if name not in SURROGATES:
        assert torch.autograd.gradcheck(loss, (new,))
        return
    token_loss = SURROGATES[name](name, batch, config)

    def surrogate(log_probs):
        weighted = token_loss(log_probs) * batch.values.exp()
        return aggregate(weighted, batch.mask, batch.segments, mode, batch.denominators())

    assert torch.autograd.gradcheck(surrogate, (new,))
    torch.testing.assert_close(loss(new), surrogate(new))
    (ours,), (expected,) = (torch.autograd.grad(function(new), new) for function in (loss, surrogate))
    assert expected.any()
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-15)


@modes
def test_value_loss_gradient(batch, mode):
    def loss(predictions):
        inputs = ValueLossInputs(
            predictions, batch.old, batch.targets, batch.mask, batch.segments, batch.denominators()
        )
        return compute_value_loss(inputs, ValueLossConfig(loss_agg_mode=mode)).loss

    assert torch.autograd.gradcheck(loss, (batch.new.requires_grad_(),))


@modes
def test_entropy_loss_gradient(batch, mode):
    def loss(entropy):
        return entropy_loss(entropy, batch.mask, batch.segments, batch.denominators(), mode)

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
