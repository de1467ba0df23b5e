"""Right values, worked out by hand, where trainers are known to have gone wrong; numbered as in the design notes."""

from dataclasses import replace

import pytest
import torch

from shared_algos.advantages import ADVANTAGES as ESTIMATORS
from shared_algos.advantages import AdvantageConfig, AdvantageInputs, compute_advantages
from shared_algos.aggregation import AGGREGATIONS, Denominators, aggregate
from shared_algos.errors import MissingInputError
from shared_algos.policy_losses import PolicyLossConfig, PolicyLossInputs, compute_policy_loss
from shared_algos.registry import Level
from shared_algos.segments import Segments

TWO_ROWS = Segments.from_lengths([3, 5])
ADVANTAGES = torch.tensor([1.0] * 3 + [-0.5] * 5)
OUTCOME_ESTIMATORS = [name for name in ESTIMATORS.names() if ESTIMATORS.get(name).level is Level.OUTCOME]


def one_token_rows(rewards, groups, sessions=None, indices=None, mask=None):
    """Inputs of rows with one token each, whose only reward component is the reward."""
    rows, rewards = torch.arange(len(rewards)), torch.as_tensor(rewards)
    return AdvantageInputs(
        rewards,
        torch.ones(len(rewards)) if mask is None else torch.tensor(mask),
        Segments.from_lengths([1] * len(rewards)),
        torch.tensor(groups),
        rows if sessions is None else torch.tensor(sessions),
        torch.zeros_like(rows) if indices is None else torch.tensor(indices),
        old_log_probs=torch.full((len(rewards),), -1.0),
        sum_pi_squared=torch.full((len(rewards),), 0.5),
        reward_components=rewards[:, None],
    )


def whitened(values):
    return (values - values.mean()) / (values.var() + 1e-8).sqrt()


def vanilla(mask, segments, mode, denominators, advantages=ADVANTAGES):
    """The vanilla loss at ratio 1."""
    log_probs = torch.zeros(len(mask))
    inputs = PolicyLossInputs(log_probs, log_probs, advantages, mask, segments, denominators)
    return compute_policy_loss("vanilla", inputs, PolicyLossConfig(loss_agg_mode=mode)).loss


def test_case_1_rejected_tokens_leave_the_denominator():
    mask = torch.tensor([1, 1, 1, 1, 1, 0, 0, 0])
    loss = vanilla(mask, TWO_ROWS, "token-mean", Denominators.count(mask, TWO_ROWS, 8))
    assert float(loss) == pytest.approx(-0.40)


def test_case_2_the_horizon_is_the_configured_length():
    mask = torch.ones(8)
    denominators = Denominators.count(mask, TWO_ROWS, 8)
    mode = "seq-mean-token-sum-norm"
    assert float(vanilla(mask, TWO_ROWS, mode, denominators)) == -0.03125
    one_row_each = [
        vanilla(mask[begin:end], Segments.from_lengths([end - begin]), mode, denominators, ADVANTAGES[begin:end])
        for begin, end in ((0, 3), (3, 8))
    ]
    assert float(sum(one_row_each)) == -0.03125


OF_THREE_OUTPUTS_AND_OF_ONE = {
    "grpo": (0.7071, -0.7071),
    "grpo_vectorized": (0.7071, -0.7071),
    "grpo_passk": (1.4142, 0.0),
    "gdpo": (0.7071, -0.7071),
    "rloo": (1.0, -1.0),
    "rloo_vectorized": (1.0, -1.0),
    "opo": (0.5, -0.5),
    "gpg": (1.0, -1.0),
    "reinforce_plus_plus_baseline": (0.7071, -0.7071),
}
"""Advantages of a session with reward 1 on each of its three outputs, and of one with reward 0."""


@pytest.mark.parametrize("name", OUTCOME_ESTIMATORS)
def test_case_4_a_session_counts_once_in_its_group(name):
    inputs = one_token_rows([1.0, 1.0, 1.0, 0.0], [0] * 4, sessions=[0, 0, 0, 1], indices=[0, 1, 2, 0])
    advantages = compute_advantages(name, inputs, AdvantageConfig()).advantages
    three, one = OF_THREE_OUTPUTS_AND_OF_ONE[name]
    assert advantages.tolist() == pytest.approx([three] * 3 + [one], abs=1e-4)


def test_case_4_the_last_output_speaks_for_its_session_in_any_row_order():
    inputs = one_token_rows([9.0, 0.0, 1.0, 5.0], [0] * 4, sessions=[0, 1, 0, 0], indices=[0, 0, 2, 1])
    advantages = compute_advantages("grpo", inputs, AdvantageConfig(norm_adv_by_std_in_grpo=False)).advantages
    assert advantages.tolist() == [0.5, -0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("remax", "reward_baselines"),
        ("optimal_token_baseline", "sum_pi_squared"),
        ("tir_optimal_token_baseline", "sum_pi_squared"),
    ],
)
def test_case_6_a_missing_input_is_named(name, missing):
    inputs = replace(one_token_rows([1.0, 0.0], [0, 0]), **{missing: None})
    with pytest.raises(MissingInputError, match=f"advantage estimator '{name}' needs '{missing}'"):
        compute_advantages(name, inputs, AdvantageConfig())


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_case_10_micro_batches_and_ranks_add_up(random_batch, mode, size):
    batch = random_batch(10)
    rows = torch.arange(batch.segments.num_rows)
    for name in ("vanilla", "value"):
        whole, gradient = batch.loss(name, mode, batch.denominators())
        for ranks in (1, 2):
            parts = [part for share in rows.tensor_split(ranks) for part in share.split(size)]
            outputs = [batch.take(part).loss(name, mode, batch.denominators()) for part in parts]
            assert sum(output.loss for output, _ in outputs).float().equal(whole.loss.float())
            assert torch.cat([part for _, part in outputs]).equal(gradient)


@pytest.mark.parametrize(
    ("name", "by_std", "expected"),
    [
        ("grpo", False, 1.0),
        ("grpo", True, 0.999999),
        ("rloo", True, 1.0),
        ("rloo_vectorized", True, 1.0),
        ("opo", True, 1.0),
        ("gpg", True, 1.0),
        ("optimal_token_baseline", True, 1.0),
        ("tir_optimal_token_baseline", True, 1.0),
    ],
)
def test_case_11_a_rejected_row_leaves_a_group_of_one(name, by_std, expected):
    inputs = one_token_rows([100.0, 1.0], [0, 0], mask=[0, 1])
    advantages = compute_advantages(name, inputs, AdvantageConfig(norm_adv_by_std_in_grpo=by_std)).advantages
    assert advantages.tolist() == pytest.approx([0.0, expected], abs=1e-9, rel=1e-7)


IN_A_GROUP = {
    "grpo": lambda scores: (scores - scores.mean()) / (scores.std() + 1e-6),
    "grpo_passk": lambda scores: (
        torch.where(scores == scores.max(), scores.max() - scores.sort().values[-2], 0) / (scores.std() + 1e-6)
    ),
    "rloo": lambda scores: scores - (scores.sum() - scores) / (len(scores) - 1),
    "opo": lambda scores: scores - scores.mean(),
    "gpg": lambda scores: (scores - scores.mean()) * 9 / 8,
    "reinforce_plus_plus_baseline": lambda scores: scores - scores.mean(),
    "optimal_token_baseline": lambda scores: scores - scores.mean(),
}
"""Advantages of the scores of one group of equally long rows; one of the nine scores of the batch is 0."""
IN_A_GROUP |= {
    "grpo_vectorized": IN_A_GROUP["grpo"],
    "gdpo": IN_A_GROUP["grpo"],
    "rloo_vectorized": IN_A_GROUP["rloo"],
    "tir_optimal_token_baseline": IN_A_GROUP["optimal_token_baseline"],
}


@pytest.mark.parametrize("name", [*OUTCOME_ESTIMATORS, "optimal_token_baseline", "tir_optimal_token_baseline"])
def test_case_12_groups_are_by_uid_whatever_their_size_and_order(name):
    groups = torch.tensor([0, 1, 2, 0, 2, 0, 1, 2, 0])
    rewards = torch.arange(9.0, dtype=torch.float64) - 4
    inputs = one_token_rows(rewards, groups.tolist())
    advantages = compute_advantages(name, inputs, AdvantageConfig(), torch.float64).advantages
    expected = torch.empty_like(rewards)
    for group in range(3):
        expected[groups == group] = IN_A_GROUP[name](rewards[groups == group])
    if name in ("gdpo", "reinforce_plus_plus_baseline"):
        expected = whitened(expected)
    torch.testing.assert_close(advantages, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ESTIMATORS.names())
def test_case_17_padding_rows_do_not_change_the_advantages_of_100_rows(random_batch, name):
    """20 rows with mask 0, a uid of their own and NaN in every column."""
    batch = random_batch(17).take(torch.zeros(120, dtype=torch.int64))
    rows = torch.arange(120)
    padding = batch.segments.spread(rows >= 100)
    noise = torch.randn(len(batch.rewards), generator=torch.Generator().manual_seed(0))
    columns = {
        column: torch.where(padding, torch.nan, noise + getattr(batch, column))
        for column in ("rewards", "values", "old", "sum_pi_squared", "is_weights")
    }
    batch = replace(
        batch,
        mask=(~padding).long(),
        groups=torch.where(rows < 100, rows // 5, rows),
        sessions=rows % 5,
        indices=torch.zeros_like(rows),
        baselines=torch.where(rows < 100, 0.5, torch.nan),
        components=torch.where(rows < 100, rows % 7, torch.nan)[:, None],
        **columns,
    )
    with_padding = compute_advantages(name, batch.inputs(), AdvantageConfig(), torch.float64)
    without = compute_advantages(name, batch.take(rows[:100]).inputs(), AdvantageConfig(), torch.float64)
    assert without.advantages.any()
    for field in ("advantages", "returns"):
        assert getattr(with_padding, field)[~padding].equal(getattr(without, field))
        assert not getattr(with_padding, field)[padding].any()


@pytest.mark.parametrize("mode", [mode for mode in AGGREGATIONS if mode != "token-sum"])
def test_case_17_padding_rows_weigh_nothing(mode):
    segments = Segments.from_lengths([4] * 120)
    mask = (torch.arange(480) < 400).long()
    denominators = Denominators.count(mask, segments, 4)
    expected = 4.0 if mode == "seq-mean-token-sum" else 1.0
    assert float(aggregate(torch.ones(480), mask, segments, mode, denominators)) == expected


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_case_17_a_mini_batch_of_padding_gives_zero(mode):
    mask = torch.zeros(8)
    assert float(vanilla(mask, TWO_ROWS, mode, Denominators.count(mask, TWO_ROWS, 8))) == 0


RETURNS_ARE_REWARDS_TO_GO = pytest.mark.parametrize(
    "name", ["gae", "reinforce_plus_plus", "remax", "optimal_token_baseline", "tir_optimal_token_baseline"]
)


def of_masked_tokens(rewards, mask, segments):
    """Inputs of rows that are each a group of their own, values, baselines and log-probs 0."""
    zeros, rows = torch.zeros(len(rewards)), torch.arange(segments.num_rows)
    return AdvantageInputs(
        torch.tensor(rewards),
        torch.tensor(mask),
        segments,
        rows,
        rows,
        rows,
        values=zeros,
        old_log_probs=zeros,
        sum_pi_squared=zeros,
        reward_baselines=zeros[: len(rows)],
    )


@RETURNS_ARE_REWARDS_TO_GO
def test_case_21_an_outcome_on_a_closing_observation_is_not_lost(name):
    inputs = of_masked_tokens([0.0, 0.0, 0.0, 0.0, 1.0], [1, 1, 1, 0, 0], Segments.from_lengths([5]))
    assert compute_advantages(name, inputs, AdvantageConfig()).returns.tolist() == [1, 1, 1, 0, 0]


@RETURNS_ARE_REWARDS_TO_GO
def test_case_21_masked_rewards_stay_in_their_row(name):
    """Before the first generated token, between two and after the last; the row before must not see any of it."""
    rewards = [0.0, 1.0, 2.0, 0.0, 4.0, 0.0, 8.0]
    inputs = of_masked_tokens(rewards, [1, 0, 0, 1, 0, 1, 0], Segments.from_lengths([2, 5]))
    assert compute_advantages(name, inputs, AdvantageConfig()).returns.tolist() == [1, 0, 0, 14, 0, 8, 0]


@pytest.mark.parametrize("name", OUTCOME_ESTIMATORS)
@pytest.mark.parametrize(("reward", "size", "dtype"), [(3.3, 7, torch.float32), (0.1, 6, torch.float64)])
def test_case_22_equal_rewards_give_exactly_zero(name, reward, size, dtype):
    """In float64 too, where six times 0.1 is not 0.6."""
    inputs = one_token_rows(torch.full((size,), reward, dtype=dtype), [0] * size)
    assert compute_advantages(name, inputs, AdvantageConfig(), torch.float64).advantages.tolist() == [0.0] * size
