"""Each policy loss on tokens few enough to work out by hand, what losses select, and what they need."""

import math

import pytest
import torch

from shared_algos.aggregation import Denominators
from shared_algos.errors import AlgorithmError, MissingInputError, UnknownAlgorithmError
from shared_algos.policy_losses import (
    POLICY_LOSSES,
    PolicyLossConfig,
    PolicyLossInputs,
    check_policy_loss,
    compute_policy_loss,
    register_policy_loss,
    select_tokens,
)
from shared_algos.rollout_correction import RolloutCorrectionConfig
from shared_algos.segments import Segments


def inputs_of(new, old, advantages, mask=None, **columns):
    """One row of tokens with probabilities ``new`` and ``old``."""
    segments = Segments.from_lengths([len(new)])
    mask = torch.ones(len(new)) if mask is None else torch.tensor(mask)
    new, old = (torch.tensor(probabilities, dtype=torch.float64).log() for probabilities in (new, old))
    advantages = torch.tensor(advantages, dtype=torch.float64)
    return PolicyLossInputs(
        new.requires_grad_(), old, advantages, mask, segments, Denominators.count(mask, segments, 8), **columns
    )


def run(name, inputs, **settings):
    """Loss (``token-sum``), gradient by token and metrics as numbers."""
    output = compute_policy_loss(name, inputs, PolicyLossConfig(loss_agg_mode="token-sum", **settings))
    output.loss.backward()
    metrics = {metric: round(float(value), 6) for metric, value in output.metrics.items()}
    return float(output.loss.detach()), inputs.log_probs.grad.tolist(), metrics


def approx(*numbers):
    return pytest.approx(list(numbers), rel=1e-6, abs=1e-12)


def test_clip_bounds_fall_back_to_clip_ratio():
    assert PolicyLossConfig(clip_ratio=0.3, clip_ratio_high=0.5).clip_range == (0.7, 1.5)


def test_vanilla_dual_clip_and_its_metrics():
    """Ratios 5, 5 and 0.5: the dual clip holds the first at 3, the clip the second at 1.2, neither the third."""
    loss, gradient, metrics = run("vanilla", inputs_of([0.5, 0.5, 0.05], [0.1, 0.1, 0.1], [-1.0, 1.0, 1.0]))
    assert loss == pytest.approx(3.0 - 1.2 - 0.5)
    assert gradient == approx(0, 0, -0.5)
    assert metrics == {
        "actor/pg_clipfrac": 0.333333,
        "actor/ppo_kl": round(-math.log(12.5) / 3, 6),
        "actor/pg_clipfrac_lower": 0.333333,
    }


def test_dppo_tv_stops_tokens_whose_probability_moved_too_far():
    """0.3 up is too far for a positive advantage and none of the business of a negative one, whose weight is 1.6."""
    inputs = inputs_of([0.8, 0.8, 0.1], [0.5, 0.5, 0.4], [2.0, -2.0, -2.0])
    loss, gradient, metrics = run("dppo_tv", inputs, clip_ratio_low=0.25, clip_ratio_high=0.2, clip_ratio_c=1.5)
    assert loss == pytest.approx(2 * 1.5 * math.log(0.8))
    assert gradient == approx(0, 2 * 1.5, 0)
    assert metrics["actor/pg_clipfrac"] == 0.666667
    assert metrics["actor/pg_clipfrac_lower"] == 0.333333


@pytest.mark.parametrize(("high", "weight"), [(0.0203, 0.0), (0.0205, 1.2)])
def test_dppo_kl_measures_the_divergence_of_one_token_against_the_rest(high, weight):
    """From 0.5 to 0.6: 0.5 log(0.5/0.6) + 0.5 log(0.5/0.4) = 0.02041."""
    _, gradient, _ = run("dppo_kl", inputs_of([0.6, 0.4], [0.5, 0.5], [1.0, 1.0]), clip_ratio_high=high)
    assert gradient == approx(-weight, -0.8)


def test_gspo_gives_a_row_one_ratio_and_each_token_its_gradient():
    """Ratios 2 and 0.5 have the geometric mean 1; a masked token does not count."""
    inputs = inputs_of([0.4, 0.1, 0.9], [0.2, 0.2, 0.1], [1.0, 1.0, 1.0], mask=[1, 1, 0])
    loss, gradient, metrics = run("gspo", inputs)
    assert loss == pytest.approx(-2.0)
    assert gradient == approx(-1, -1, 0)
    assert metrics == {"actor/pg_clipfrac": 0, "actor/ppo_kl": 0, "actor/pg_clipfrac_lower": 0}


def test_gspo_holds_the_log_ratio_of_a_row_at_ten():
    loss, gradient, _ = run("gspo", inputs_of([1.0, 1.0], [1e-9, 1e-9], [-1.0, -1.0]))
    assert loss == pytest.approx(2 * math.exp(10))
    assert gradient == [0, 0]


def test_sapo_has_a_gate_for_each_sign():
    """At ratio 1 the gate is 2 / tau and its slope 1; at ratio 2 it is sigmoid(tau) * 4 / tau."""
    loss, gradient, metrics = run("sapo", inputs_of([0.1, 0.1], [0.1, 0.1], [1.0, -1.0]), tau_pos=0.5, tau_neg=4.0)
    assert loss == pytest.approx((-4.0 + 0.5) / 2)  # the mean over the row, whatever loss_agg_mode says
    assert gradient == approx(-0.5, 0.5)
    assert metrics == {"actor/pg_clipfrac": 0, "actor/ppo_kl": 0, "actor/pg_clipfrac_lower": 0}
    loss, _, _ = run("sapo", inputs_of([0.2], [0.1], [1.0]))
    assert loss == pytest.approx(-4 / (1 + math.exp(-1)))


def test_gpg_is_the_plain_policy_gradient():
    assert run("gpg", inputs_of([0.5], [0.1], [3.0])) == (pytest.approx(-3 * math.log(0.5)), [-3.0], {})


def test_dro_pulls_the_policy_back():
    loss, gradient, metrics = run("dro", inputs_of([0.4], [0.2], [3.0]), dro_beta=0.5)
    assert loss == pytest.approx(-3 * math.log(0.4) + 0.25 * math.log(2) ** 2)
    assert gradient == approx(-3 + 0.5 * math.log(2))
    assert metrics == {"actor/ppo_kl": round(-math.log(2), 6)}


def test_cispo_clips_the_weight_and_keeps_the_gradient():
    loss, gradient, metrics = run("cispo", inputs_of([0.4, 0.1], [0.2, 0.1], [1.0, -1.0]))
    assert loss == pytest.approx(-1.2 * math.log(0.4) + math.log(0.1))
    assert gradient == approx(-1.2, 1)
    assert metrics["actor/pg_clipfrac"] == 0.5


def test_geo_mean_clips_the_side_that_would_be_exploited():
    """Log-ratios log 2 and -log 2 with a positive advantage: only the first is cut, to 0.2."""
    inputs = inputs_of([0.4, 0.1], [0.2, 0.2], [1.0, 2.0])
    loss, gradient, metrics = run("geo_mean", inputs)
    ratio = math.exp((0.2 - math.log(2)) / 2)
    assert loss == pytest.approx(-1.5 * ratio)
    assert gradient == approx(0, -1.5 * ratio / 2)
    assert metrics["actor/pg_clipfrac"] == 1
    assert metrics["actor/pg_clipfrac_lower"] == 0


def test_geo_mean_takes_the_geometric_mean_of_weights():
    inputs = inputs_of([0.1, 0.1], [0.1, 0.1], [1.0, 1.0], rollout_is_weights=torch.tensor([2.0, 8.0]))
    loss, _, _ = run("geo_mean", inputs)
    assert loss == pytest.approx(-4)


def test_clip_cov_leaves_selected_tokens_out():
    selected = torch.tensor([True, False])
    loss, gradient, metrics = run("clip_cov", inputs_of([0.1, 0.1], [0.1, 0.1], [1.0, 1.0], selected=selected))
    assert (loss, gradient) == (-1, [0, -1])
    assert metrics == {"actor/pg_clipfrac": 0.5, "actor/ppo_kl": 0}


def test_kl_cov_penalises_selected_tokens():
    selected = torch.tensor([True, False])
    inputs = inputs_of([0.1, 0.1], [0.2, 0.2], [1.0, 1.0], selected=selected)
    loss, gradient, metrics = run("kl_cov", inputs, ppo_kl_coef=0.3)
    assert loss == pytest.approx(-0.5 + 0.3 * math.log(2) - 0.5)
    assert gradient == approx(-0.5 - 0.3, -0.5)
    assert metrics == {"actor/ppo_kl": round(math.log(2), 6)}


def chosen(name, inputs, seed=0, **settings):
    """The places that a loss selects."""
    generator = torch.Generator().manual_seed(seed)
    selection = select_tokens(name, inputs, PolicyLossConfig(**settings), generator)
    return selection.selected.nonzero().squeeze(1).tolist()


def half_and_half(mask=None):
    """Ten tokens that pair advantage and log-prob alike (covariance 1.1) and ten that do not (-1.1)."""
    high, low = math.exp(-0.1), math.exp(-2.3)
    new = [high] * 5 + [low] * 5 + [high] * 5 + [low] * 5
    return inputs_of(new, new, [1.0] * 5 + [-1.0] * 5 + [-1.0] * 5 + [1.0] * 5, mask)


def test_clip_cov_draws_among_tokens_of_high_covariance():
    draws = [chosen("clip_cov", half_and_half(), seed, clip_cov_ratio=0.15) for seed in range(40)]
    assert all(len(draw) == 3 for draw in draws)
    assert set().union(*draws) == set(range(10))
    assert chosen("clip_cov", half_and_half(), 7, clip_cov_ratio=0.15) == draws[7]


def test_clip_cov_selects_at_least_one_and_at_most_the_candidates():
    assert len(chosen("clip_cov", half_and_half())) == 1
    assert chosen("clip_cov", half_and_half(), clip_cov_ratio=1.0) == list(range(10))
    assert chosen("clip_cov", half_and_half(), clip_cov_lb=1.2, clip_cov_ratio=1.0) == []
    assert chosen("clip_cov", half_and_half(), clip_cov_lb=0.5, clip_cov_ub=1.0, clip_cov_ratio=1.0) == []


def test_clip_cov_leaves_masked_and_clipped_tokens_alone():
    inputs = half_and_half([0] + [1] * 4 + [0] + [1] * 4 + [1, 0, 1, 1, 1, 1, 0, 1, 1, 1])
    inputs.old_log_probs[1] -= 1  # a ratio of 2.7 with a positive advantage: the clip holds it already
    assert chosen("clip_cov", inputs, clip_cov_ratio=1.0) == [2, 3, 4, 6, 7, 8, 9]


def test_kl_cov_selects_the_highest_covariances_and_ties_by_position():
    assert chosen("kl_cov", half_and_half(), kl_cov_ratio=0.15) == [0, 1, 2]
    inputs = half_and_half()
    inputs.advantages[8] = -3.0
    assert chosen("kl_cov", inputs, kl_cov_ratio=0.1) == [0, 8]
    assert chosen("kl_cov", inputs, kl_cov_ratio=1.0) == list(range(20))
    assert chosen("kl_cov", half_and_half([0] * 3 + [1] * 17), kl_cov_ratio=0.06) == [3]


def test_losses_without_a_selection_select_nothing():
    assert select_tokens("vanilla", half_and_half(), PolicyLossConfig(), torch.Generator()) is None


def test_bypass_mode_weighs_and_rejects_against_the_rollout():
    """Ratios 3, 1 and 0.1: the weight of the first is cut to 2, the third token is rejected."""
    correction = RolloutCorrectionConfig(
        rollout_is="token", rollout_rs="token_k1", rollout_rs_threshold="0.2_5.0", loss_type="reinforce"
    )
    inputs = inputs_of([0.3, 0.5, 0.05], [0.1, 0.5, 0.5], [1.0, 1.0, 1.0])
    config = PolicyLossConfig(rollout_correction=correction)
    selection = select_tokens("bypass_mode", inputs, config, torch.Generator())
    assert selection.response_mask.tolist() == [1, 1, 0]
    assert selection.rollout_is_weights.tolist() == approx(2, 1, 0)
    assert selection.metrics["rollout_corr/rollout_is_max"] == 2
    inputs = inputs_of(
        [0.3, 0.5, 0.05],
        [0.1, 0.5, 0.5],
        [1.0, 1.0, 1.0],
        [1, 1, 0],
        rollout_is_weights=selection.rollout_is_weights,
    )
    loss, gradient, metrics = run("bypass_mode", inputs, rollout_correction=correction)
    assert loss == pytest.approx(-2 * math.log(0.3) - math.log(0.5))
    assert gradient == approx(-2, -1, 0)
    assert metrics == {"actor/ppo_kl": round(-math.log(3) / 2, 6)}


@pytest.mark.parametrize(("loss_type", "expected"), [("ppo_clip", -1.2), ("reinforce", -math.log(0.3))])
def test_bypass_mode_does_not_take_weights_that_it_did_not_ask_for(loss_type, expected):
    """PPO's ratio corrects already, and weights that came with the batch are of other policies."""
    inputs = inputs_of([0.3], [0.1], [1.0], rollout_is_weights=torch.tensor([7.0]))
    loss, _, _ = run("bypass_mode", inputs, rollout_correction=RolloutCorrectionConfig(loss_type=loss_type))
    assert loss == pytest.approx(expected)


def test_a_missing_input_is_named():
    inputs = inputs_of([0.5], [0.5], [1.0])
    with pytest.raises(MissingInputError, match="policy loss 'kl_cov' needs 'selected', which the batch does not have"):
        run("kl_cov", inputs)
    weighted = RolloutCorrectionConfig(rollout_is="token", loss_type="reinforce")
    with pytest.raises(MissingInputError, match="'bypass_mode' needs the 'rollout_is_weights'"):
        run("bypass_mode", inputs, rollout_correction=weighted)
    with pytest.raises(UnknownAlgorithmError, match="unknown policy loss 'vanila'; did you mean 'vanilla'"):
        run("vanila", inputs)


@pytest.mark.parametrize(("name", "setting"), [("dro", "dro_beta"), ("bypass_mode", "rollout_correction")])
def test_a_missing_setting_is_named_before_there_is_a_batch(name, setting):
    message = f"policy loss '{name}' needs '{setting}', which the config does not set"
    with pytest.raises(MissingInputError, match=message):
        check_policy_loss(name, PolicyLossConfig())
    with pytest.raises(MissingInputError, match=message):
        select_tokens(name, half_and_half(), PolicyLossConfig(), torch.Generator())
    with pytest.raises(MissingInputError, match=message):
        run(name, half_and_half())


def test_a_need_that_is_neither_input_nor_setting_is_refused():
    with pytest.raises(AlgorithmError, match=r"\['weightz'\]"):
        register_policy_loss("mine", needs={"weightz"})
    assert "mine" not in POLICY_LOSSES.names()
