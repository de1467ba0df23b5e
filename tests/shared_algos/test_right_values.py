"""Right values, worked out by hand, where trainers are known to have gone wrong; numbered as in the design notes."""

from dataclasses import replace

import pytest
import torch

from shared_algos.advantages import AdvantageConfig, AdvantageInputs, compute_advantages
from shared_algos.aggregation import AGGREGATIONS, Denominators, aggregate
from shared_algos.policy_losses import PolicyLossConfig, PolicyLossInputs, compute_policy_loss
from shared_algos.segments import Segments

TWO_ROWS = Segments.from_lengths([3, 5])
ADVANTAGES = torch.tensor([1.0] * 3 + [-0.5] * 5)


def one_token_rows(rewards, groups, sessions=None, indices=None, mask=None):
    """Inputs of rows with one token each."""
    rows = torch.arange(len(rewards))
    return AdvantageInputs(
        torch.tensor(rewards),
        torch.ones(len(rewards)) if mask is None else torch.tensor(mask),
        Segments.from_lengths([1] * len(rewards)),
        torch.tensor(groups),
        rows if sessions is None else torch.tensor(sessions),
        torch.zeros_like(rows) if indices is None else torch.tensor(indices),
    )


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


def test_case_4_a_session_counts_once_in_its_group():
    inputs = one_token_rows([1.0, 1.0, 1.0, 0.0], [0] * 4, sessions=[0, 0, 0, 1], indices=[0, 1, 2, 0])
    for name in ("grpo", "grpo_vectorized"):
        advantages = compute_advantages(name, inputs, AdvantageConfig()).advantages
        assert advantages.tolist() == pytest.approx([0.7071] * 3 + [-0.7071], abs=1e-4)


def test_case_4_the_last_output_speaks_for_its_session_in_any_row_order():
    inputs = one_token_rows([9.0, 0.0, 1.0, 5.0], [0] * 4, sessions=[0, 1, 0, 0], indices=[0, 0, 2, 1])
    advantages = compute_advantages("grpo", inputs, AdvantageConfig(norm_adv_by_std_in_grpo=False)).advantages
    assert advantages.tolist() == [0.5, -0.5, 0.5, 0.5]


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


@pytest.mark.parametrize(("by_std", "expected"), [(False, 1.0), (True, 0.999999)])
def test_case_11_a_rejected_row_leaves_a_group_of_one(by_std, expected):
    inputs = one_token_rows([100.0, 1.0], [0, 0], mask=[0, 1])
    advantages = compute_advantages("grpo", inputs, AdvantageConfig(norm_adv_by_std_in_grpo=by_std)).advantages
    assert advantages.tolist() == pytest.approx([0.0, expected], abs=1e-9, rel=1e-7)


def test_case_12_groups_are_by_uid_whatever_their_size_and_order():
    groups = [0, 1, 2, 0, 2, 0, 1, 2, 0]
    rewards = [float(i) for i in range(9)]
    advantages = compute_advantages("grpo", one_token_rows(rewards, groups), AdvantageConfig()).advantages
    for group in range(3):
        members = torch.tensor([reward for reward, of in zip(rewards, groups, strict=True) if of == group])
        expected = (members - members.mean()) / (members.std() + 1e-6)
        torch.testing.assert_close(advantages[torch.tensor(groups) == group], expected)


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


def test_case_21_an_outcome_on_a_closing_observation_is_not_lost():
    rewards = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0])
    zero = torch.tensor([0])
    mask = torch.tensor([1, 1, 1, 0, 0])
    inputs = AdvantageInputs(rewards, mask, Segments.from_lengths([5]), zero, zero, zero, values=torch.zeros(5))
    assert compute_advantages("gae", inputs, AdvantageConfig()).returns.tolist() == [1, 1, 1, 0, 0]


def test_case_21_masked_rewards_stay_in_their_row():
    """Before the first generated token, between two and after the last; the row before must not see any of it."""
    rewards = torch.tensor([0.0, 1.0, 2.0, 0.0, 4.0, 0.0, 8.0])
    mask = torch.tensor([1, 0, 0, 1, 0, 1, 0])
    rows, segments = torch.arange(2), Segments.from_lengths([2, 5])
    inputs = AdvantageInputs(rewards, mask, segments, rows, rows, rows, values=torch.zeros(7))
    returns = compute_advantages("gae", inputs, AdvantageConfig()).returns
    assert returns.tolist() == [1, 0, 0, 14, 0, 8, 0]


@pytest.mark.parametrize(("reward", "size", "dtype"), [(3.3, 7, torch.float32), (0.1, 6, torch.float64)])
def test_case_22_equal_rewards_give_exactly_zero(reward, size, dtype):
    """In float64 too, where six times 0.1 is not 0.6."""
    inputs = one_token_rows([reward] * size, [0] * size)
    inputs = replace(inputs, token_level_rewards=torch.tensor([reward] * size, dtype=dtype))
    assert compute_advantages("grpo", inputs, AdvantageConfig(), torch.float64).advantages.tolist() == [0.0] * size
