"""Where policy losses differ from verl 0.9.1 by intent: both values, numbered as in docs/deviations.md."""

import math

import pytest
import torch

from shared_algos.aggregation import Denominators
from shared_algos.errors import AlgorithmError
from shared_algos.policy_losses import (
    POLICY_LOSSES,
    PolicyLossConfig,
    PolicyLossInputs,
    compute_policy_loss,
    select_tokens,
)
from shared_algos.rollout_correction import RolloutCorrectionConfig
from shared_algos.segments import Segments

pytestmark = pytest.mark.oracle
BYPASS = {"rollout_is": "token", "rollout_is_batch_normalize": True, "loss_type": "reinforce"}


def of_verl(verl, name, new, old, advantages, mask=None, of_actor=None, **settings):
    """Loss, gradient ``[B, R]`` and metrics of one micro-batch in verl; ``settings`` stand under ``policy_loss``."""
    return verl(
        "policy_loss",
        name=name,
        log_prob=new.clone(),
        old_log_prob=old,
        advantages=advantages,
        response_mask=torch.ones_like(new).long() if mask is None else mask,
        loss_agg_mode="token-mean",
        config={"policy_loss": {"rollout_correction": {"rollout_is": None}} | settings} | (of_actor or {}),
    )


def of_ours(name, new, old, advantages, mask=None, settings=None):
    """Loss and gradient ``[B, R]`` of one mini-batch, the selection made on all of it."""
    mask = torch.ones_like(new).long() if mask is None else mask
    segments, config = Segments.from_lengths([new.shape[1]] * len(new)), PolicyLossConfig(**(settings or {}))
    new = new.clone().requires_grad_()

    def inputs(mask, **columns):
        counted = Denominators.count(mask, segments, new.shape[1])
        return PolicyLossInputs(*(c.flatten() for c in (new, old, advantages)), mask, segments, counted, **columns)

    selection = select_tokens(name, inputs(mask.flatten()), config, torch.Generator().manual_seed(0))
    columns = {} if selection is None else selection.columns
    mask = columns.pop("response_mask", mask.flatten())
    loss = compute_policy_loss(name, inputs(mask, **columns), config).loss
    loss.backward()
    return float(loss.detach()), new.grad


def test_l1_tokens_are_selected_in_the_whole_mini_batch(verl):
    """Two rows alike: in micro-batches of one row verl penalises a token of each, here it is one of all."""
    new, advantages = torch.tensor([[-0.1, -2.0, -1.0]] * 2), torch.tensor([[1.0, -1.0, 1.0]] * 2)
    old = new + 0.5
    plain = -advantages * math.exp(-0.5)
    rows = [of_verl(verl, "kl_cov", new[i : i + 1], old[:1], advantages[:1], ppo_kl_coef=1.0)[1] for i in (0, 1)]
    theirs = torch.cat(rows) * 3 - plain  # a row was a mini-batch of three tokens
    assert theirs.flatten().tolist() == pytest.approx([0, -1, 0, 0, -1, 0], abs=1e-6)
    _, gradient = of_ours("kl_cov", new, old, advantages, settings={"ppo_kl_coef": 1.0})
    assert (gradient * 6 - plain).flatten().tolist() == pytest.approx([0, -1, 0, 0, 0, 0], abs=1e-6)


def test_l2_weights_are_normalised_over_the_whole_mini_batch(verl):
    """Two rows of weight 2 and 1: alone each has the mean 1, together 1.5."""
    new, advantages = torch.full((2, 1), -1.0), torch.ones(2, 1)
    old = torch.tensor([[-1.0 - math.log(2)], [-1.0]])
    losses = [
        float(of_verl(verl, "bypass_mode", new[:1], old[i : i + 1], advantages[:1], rollout_correction=BYPASS)[0])
        for i in (0, 1)
    ]
    assert losses == pytest.approx([1, 1])
    settings = {"rollout_correction": RolloutCorrectionConfig(**BYPASS)}
    _, gradient = of_ours("bypass_mode", new, old, advantages, settings=settings)
    assert (gradient * 2).flatten().tolist() == pytest.approx([-2 / 1.5, -1 / 1.5])


def test_l3_tokens_that_bypass_mode_rejects_leave_the_denominator(verl):
    """Eight tokens, the last three are rejected; verl's trainer counted all eight before."""
    new, advantages = torch.zeros(1, 8), torch.tensor([[1.0] * 3 + [-0.5] * 5])
    old = torch.tensor([[0.0] * 5 + [-1.4] * 3])
    correction = {"rollout_is": None, "rollout_rs": "token_k1", "rollout_rs_threshold": 2.0}
    counted = {"global_batch_info": {"dp_size": 1, "batch_num_tokens": 8}}
    theirs, _, _ = of_verl(verl, "bypass_mode", new, old, advantages, of_actor=counted, rollout_correction=correction)
    settings = {"rollout_correction": RolloutCorrectionConfig(**correction)}
    ours, _ = of_ours("bypass_mode", new, old, advantages, settings=settings)
    assert float(theirs) == pytest.approx(-0.25)
    assert ours == pytest.approx(-0.40)


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_l4_the_log_ratio_is_bounded_in_exp(verl, name):
    """Log-ratio 30, and 100 with advantage 0: infinity times zero in float32."""
    zeros, advantages = torch.zeros(1, 2), torch.tensor([[-1.0, 0.0]])
    for log_ratio, theirs_is in ((30.0, torch.isfinite), (100.0, torch.isnan)):
        new = torch.tensor([[log_ratio, log_ratio]])
        theirs, _, _ = of_verl(verl, name, new, zeros, advantages, ppo_kl_coef=0.0)
        assert theirs_is(theirs)
        ours, gradient = of_ours(name, new, zeros, advantages, settings={"ppo_kl_coef": 0.0})
        assert ours == pytest.approx(math.exp(20) / 2)
        assert gradient.tolist() == [[0, 0]]


def test_l5_a_rows_mean_log_ratio_is_bounded_in_geo_mean(verl):
    new, zeros, advantages = torch.full((1, 2), 100.0), torch.zeros(1, 2), -torch.ones(1, 2)
    theirs, _, _ = of_verl(verl, "geo_mean", new, zeros, advantages)
    ours, gradient = of_ours("geo_mean", new, zeros, advantages)
    assert theirs.isinf()
    assert ours == pytest.approx(math.exp(20))
    assert gradient.tolist() == [[0, 0]]


def test_l6_masked_rows_leave_the_mean_of_geo_mean(verl):
    zeros, advantages, mask = torch.zeros(2, 1), torch.ones(2, 1), torch.tensor([[1], [0]])
    theirs, _, _ = of_verl(verl, "geo_mean", zeros, zeros, advantages, mask)
    ours, _ = of_ours("geo_mean", zeros, zeros, advantages, mask)
    assert float(theirs) == -0.5
    assert ours == -1


@pytest.mark.parametrize("name", POLICY_LOSSES.names())
def test_l7_nan_at_a_masked_token_stays_there(verl, name):
    """In the log-probs and the advantage; verl's loss or gradient is NaN, or its other aggregations are."""
    new, old = torch.tensor([[-1.0, math.nan, -0.5]]), torch.tensor([[-1.0, math.nan, -1.0]])
    advantages, mask = torch.tensor([[1.0, math.nan, 1.0]]), torch.tensor([[1, 0, 1]])
    settings = {"dro_beta": 0.1, "rollout_correction": RolloutCorrectionConfig()}
    loss, gradient = of_ours(name, new, old, advantages, mask, settings)
    assert math.isfinite(loss)
    assert gradient.isfinite().all()
    assert gradient[0, 1] == 0
    if name in ("vanilla", "bypass_mode"):
        return
    theirs, of_theirs, _ = of_verl(verl, name, new, old, advantages, mask, dro_beta=0.1)
    assert theirs.isnan() or of_theirs.isnan().any()


def test_l8_a_setting_without_meaning_is_refused(verl):
    """null for ppo_kl_coef is 1 in verl and not its default; a negative tau turns SAPO's gate around."""
    new, old, advantages = torch.zeros(1, 2), torch.ones(1, 2), torch.tensor([[1.0, -1.0]])
    none, one = (of_verl(verl, "kl_cov", new, old, advantages, ppo_kl_coef=value)[0] for value in (None, 1.0))
    assert none == one
    theirs, _, _ = of_verl(verl, "sapo", new, old, advantages, of_actor={"tau_neg": -1.0})
    assert theirs.isfinite()
    for settings in ({"ppo_kl_coef": None}, {"tau_neg": -1.0}):
        (name,) = settings
        with pytest.raises(AlgorithmError, match=f"{name} must be"):
            PolicyLossConfig(**settings)
