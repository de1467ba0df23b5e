"""What must hold for the advantages of any batch, and the names under which estimators are found."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared_algos.advantages import ADVANTAGES, AdvantageConfig, AdvantageInputs, compute_advantages
from shared_algos.advantages.outcomes import Outcomes
from shared_algos.advantages.ranking import rank_in_groups
from shared_algos.advantages.token_baseline import _sum_by_sort, _sum_in_order
from shared_algos.advantages.whitening import whiten_outcomes, whiten_tokens
from shared_algos.registry import Level
from shared_algos.segments import Segments

seeds = st.integers(0, 2**32)
examples = settings(max_examples=100, deadline=None)
DR_GRPO = AdvantageConfig(norm_adv_by_std_in_grpo=False)

OUTCOME = {"gdpo", "gpg", "grpo", "grpo_passk", "opo", "reinforce_plus_plus_baseline", "rloo"}
TOKEN = {"gae", "optimal_token_baseline", "reinforce_plus_plus", "remax", "tir_optimal_token_baseline"}


def of_sessions(name, batch, config=AdvantageConfig()):  # noqa: B008 (it is frozen)
    """Advantages ``[S]`` of the sessions of a batch, and the sessions."""
    outcomes = Outcomes.of(batch.inputs())
    return ADVANTAGES.get(name).function(outcomes, config), outcomes


def test_every_estimator_of_verl_is_registered_at_its_level():
    by_level = {level: {n for n in ADVANTAGES.names() if ADVANTAGES.get(n).level is level} for level in Level}
    assert by_level[Level.OUTCOME] == OUTCOME | {"grpo_vectorized", "rloo_vectorized"}
    assert by_level[Level.TOKEN] == TOKEN


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_vectorized_names_are_the_same_function(name):
    assert ADVANTAGES.get(f"{name}_vectorized").function is ADVANTAGES.get(name).function


@pytest.mark.parametrize("name", ADVANTAGES.names())
def test_every_estimator_names_its_paper(name):
    assert "arXiv:" in ADVANTAGES.get(name).reference


@pytest.mark.parametrize("name", ["rloo", "gpg", "grpo"])
@examples
@given(seed=seeds)
def test_advantages_of_a_group_of_several_add_up_to_zero(random_batch, name, seed):
    advantages, outcomes = of_sessions(name, random_batch(seed))
    assert not (outcomes.groups.sum(advantages)[outcomes.groups.lengths > 1].abs() > 1e-9).any()


@examples
@given(seed=seeds)
def test_advantages_of_opo_weighted_by_length_add_up_to_zero(random_batch, seed):
    advantages, outcomes = of_sessions("opo", random_batch(seed))
    sums = outcomes.groups.sum(advantages * outcomes.lengths)
    assert not (sums[outcomes.groups.lengths > 1].abs() > 1e-9).any()


@pytest.mark.parametrize("name", sorted(OUTCOME - {"gdpo", "gpg"}))
@examples
@given(seed=seeds, constant=st.floats(-100, 100))
def test_a_constant_added_to_every_score_changes_nothing_but_groups_of_one(random_batch, name, seed, constant):
    batch = random_batch(seed, torch.float64).suited("grpo_passk")
    first = batch.segments.offsets[:-1][batch.segments.lengths > 0]
    shifted = replace(batch, rewards=batch.rewards.index_add(0, first, torch.full((len(first),), constant).double()))
    before, after = (of_sessions(name, b)[0] for b in (batch, shifted))
    torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["grpo", "grpo_passk", "gdpo", "reinforce_plus_plus_baseline"])
@examples
@given(seed=seeds, factor=st.floats(0.5, 100))
def test_the_scale_of_scores_does_not_matter(random_batch, name, seed, factor):
    """Scores are large, so that the epsilons beside their spread do not matter either."""
    batch = random_batch(seed, torch.float64).suited("grpo_passk")
    before, after = (
        of_sessions(name, replace(batch, rewards=batch.rewards * by, components=batch.components * by))[0]
        for by in (1e6, 1e6 * factor)
    )
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


@examples
@given(seed=seeds)
def test_rloo_is_the_score_less_the_mean_of_the_others(random_batch, seed):
    advantages, outcomes = of_sessions("rloo", random_batch(seed))
    for group, scores in zip(outcomes.groups.split(advantages), outcomes.groups.split(outcomes.scores), strict=True):
        others = (scores.sum() - scores) / (len(scores) - 1) if len(scores) > 1 else 0.0
        torch.testing.assert_close(group, scores - others)


@examples
@given(seed=seeds)
def test_only_the_best_of_a_group_learns_at_pass_at_k(random_batch, seed):
    advantages, outcomes = of_sessions("grpo_passk", random_batch(seed).suited("grpo_passk"), DR_GRPO)
    for group, scores in zip(outcomes.groups.split(advantages), outcomes.groups.split(outcomes.scores), strict=True):
        best, second = scores.topk(2).values
        assert group.count_nonzero() <= 1
        assert group[scores.argmax()] == group.sum() == best - second


@pytest.mark.parametrize("by_std", [True, False])
@examples
@given(seed=seeds)
def test_gdpo_of_the_score_alone_is_whitened_grpo(random_batch, by_std, seed):
    batch, config = random_batch(seed, torch.float64), AdvantageConfig(norm_adv_by_std_in_grpo=by_std)
    alone = replace(batch, components=batch.segments.sum(batch.rewards)[:, None])
    advantages, outcomes = of_sessions("gdpo", alone, replace(config, gdpo_reward_weights=(1.0,)))
    assert advantages.equal(whiten_outcomes(of_sessions("grpo", batch, config)[0], outcomes))


@examples
@given(seed=seeds)
def test_a_component_of_weight_zero_does_not_enter_gdpo(random_batch, seed):
    batch = random_batch(seed)
    weighted = of_sessions("gdpo", batch, AdvantageConfig(gdpo_reward_weights=(0.0, 3.0, 0.5)))[0]
    two = replace(batch, components=batch.components[:, 1:])
    assert weighted.equal(of_sessions("gdpo", two, AdvantageConfig(gdpo_reward_weights=(3.0, 0.5)))[0])


@examples
@given(seed=seeds)
def test_gdpo_with_weights_of_one_is_gdpo_without_weights(random_batch, seed):
    batch = random_batch(seed)
    ones = of_sessions("gdpo", batch, AdvantageConfig(gdpo_reward_weights=(1.0, 1.0, 1.0)))[0]
    assert ones.equal(of_sessions("gdpo", batch)[0])


@examples
@given(seed=seeds)
def test_whitening_outcomes_is_whitening_the_tokens_of_last_outputs(random_batch, seed):
    outcomes = Outcomes.of(random_batch(seed).inputs())
    tokens = Segments.from_lengths(outcomes.lengths)
    expected = whiten_tokens(tokens.spread(outcomes.scores), tokens)
    torch.testing.assert_close(tokens.spread(whiten_outcomes(outcomes.scores, outcomes)), expected)


@examples
@given(seed=seeds)
def test_without_masked_tokens_both_token_baselines_are_one(random_batch, seed):
    batch = random_batch(seed)
    batch = replace(batch, mask=torch.ones_like(batch.mask))
    absolute, compressed = (
        compute_advantages(name, batch.inputs(), AdvantageConfig(), torch.float64)
        for name in ("optimal_token_baseline", "tir_optimal_token_baseline")
    )
    assert absolute.advantages.equal(compressed.advantages)


@examples
@given(seed=seeds)
def test_both_ways_to_sum_a_cell_give_the_same_bits(seed):
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(500, generator=random, dtype=torch.float64)
    cell = torch.randint(0, 90, (500,), generator=random)
    assert _sum_in_order(values, cell, 100).equal(_sum_by_sort(values, cell, 100))


def test_rewards_to_go_of_one_row():
    """remax takes a baseline from them, reinforce_plus_plus discounts and whitens them."""
    row = torch.zeros(1, dtype=torch.int64)
    rewards, baselines = torch.tensor([0.0, 2, 0, 4]), torch.tensor([1.5])
    inputs = AdvantageInputs(
        rewards, torch.ones(4), Segments.from_lengths([4]), row, row, row, reward_baselines=baselines
    )
    remax = compute_advantages("remax", inputs, AdvantageConfig(gamma=0.5))
    assert (remax.returns.tolist(), remax.advantages.tolist()) == ([6, 6, 4, 4], [4.5, 4.5, 2.5, 2.5])
    discounted = compute_advantages("reinforce_plus_plus", inputs, AdvantageConfig(gamma=0.5))
    assert discounted.returns.tolist() == [1.5, 3, 2, 4]
    assert discounted.advantages.tolist() == pytest.approx([-1.0147, 0.3382, -0.5637, 1.2402], abs=1e-4)


def test_ranking_keeps_equal_values_in_order():
    groups = Segments.from_lengths([4, 1, 2])
    ranked = rank_in_groups(torch.tensor([1.0, 3.0, 3.0, 2.0, 9.0, 5.0, 5.0]), groups)
    assert ranked.tolist() == [1, 2, 3, 0, 4, 5, 6]


def test_of_equally_good_answers_none_learns_at_pass_at_k(random_batch):
    batch = random_batch(10).suited("grpo_passk")
    batch = replace(batch, rewards=torch.zeros_like(batch.rewards))
    assert not of_sessions("grpo_passk", batch)[0].any()


@pytest.mark.parametrize("name", ["optimal_token_baseline", "tir_optimal_token_baseline"])
@pytest.mark.parametrize(
    ("lengths", "rewards", "expected"),
    [
        ([2, 3], [0.0, 4, 0, 0, 1], [1.5, 1.5, -1.5, -1.5, 1.0]),
        ([3, 3], [0.0, 0, 4, 0, 0, 1], [1.5, 1.5, 1.5, -1.5, -1.5, -1.5]),
        ([1, 3, 2], [3.0, 0, 0, 0, 0, 3], [1.0, -2.0, -1.5, 0.0, 1.0, 1.5]),
    ],
)
def test_the_longest_row_has_no_baseline_beyond_the_second_longest(name, lengths, rewards, expected):
    """Every token has the same variance, so that W is the same for all tokens at one position."""
    rows, tokens = torch.arange(len(lengths)), len(rewards)
    inputs = AdvantageInputs(
        torch.tensor(rewards),
        torch.ones(tokens),
        Segments.from_lengths(lengths),
        torch.zeros_like(rows),
        rows,
        rows,
        old_log_probs=torch.full((tokens,), -1.0),
        sum_pi_squared=torch.full((tokens,), 0.5),
    )
    assert compute_advantages(name, inputs, AdvantageConfig()).advantages.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("optimal_token_baseline", [2.4, 0.0, 0.0, -0.6, 0.0]),
        ("tir_optimal_token_baseline", [2.4, 0.0, 4 - 13 / 7, -0.6, 1 - 13 / 7]),
    ],
)
def test_what_a_token_is_compared_with_after_a_masked_one(name, expected):
    """W is 1 and 2 in the first row, 4 and 5 in the second, whose first token has importance weight 2."""
    rows = torch.arange(2)
    inputs = AdvantageInputs(
        torch.tensor([0.0, 0, 4, 0, 1]),
        torch.tensor([1, 0, 1, 1, 1]),
        Segments.from_lengths([3, 2]),
        torch.zeros_like(rows),
        rows,
        rows,
        old_log_probs=torch.full((5,), 0.5).log(),
        sum_pi_squared=torch.ones(5),
        rollout_is_weights=torch.tensor([1.0, 1, 1, 2, 1]),
    )
    assert compute_advantages(name, inputs, AdvantageConfig()).advantages.tolist() == pytest.approx(expected, abs=1e-6)
