"""Extreme input gives a finite result or an error that names the row, never a silent NaN."""

from dataclasses import replace

import pytest
import torch

from shared_algos.advantages import ADVANTAGES, AdvantageConfig, AdvantageInputs, compute_advantages
from shared_algos.aggregation import AGGREGATIONS
from shared_algos.errors import AlgorithmError, MissingInputError, NonFiniteError
from shared_algos.kl import KL_PENALTIES, kl_penalty
from shared_algos.policy_losses import POLICY_LOSSES
from shared_algos.segments import Segments

estimators = pytest.mark.parametrize("name", ADVANTAGES.names())
losses = pytest.mark.parametrize("name", [*POLICY_LOSSES.names(), "value", "kl"])


def two_rows(rewards, mask=(1, 1, 1), **columns):
    """Rows of two and of one token, of one group."""
    rows = torch.arange(2)
    return AdvantageInputs(
        torch.tensor(rewards),
        torch.tensor(mask),
        Segments.from_lengths([2, 1]),
        torch.zeros_like(rows),
        rows,
        torch.zeros_like(rows),
        **({"values": torch.zeros(3)} | columns),
    )


@losses
@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_log_ratios_of_ten_thousand(random_batch, name, mode, offset):
    batch = random_batch(1)
    output, gradient = replace(batch, new=batch.old + offset).loss(name, mode, batch.denominators())
    assert output.loss.isfinite()
    assert gradient.isfinite().all()
    assert all(value.isfinite() for value in output.metrics.values())


@pytest.mark.parametrize("kind", KL_PENALTIES)
def test_kl_of_log_ratios_of_ten_thousand(kind):
    assert kl_penalty(torch.tensor([1e4, -1e4]), torch.zeros(2), kind).isfinite().all()


@estimators
@pytest.mark.parametrize("rows", [0, 1])
def test_an_empty_batch_and_a_batch_of_one(random_batch, name, rows):
    batch = random_batch(2)
    longest = batch.segments.lengths.argsort(descending=True)[:rows]
    outputs = compute_advantages(name, batch.take(longest).inputs(), AdvantageConfig())
    assert outputs.advantages.isfinite().all()
    assert len(outputs.returns) == batch.segments.lengths[longest].sum()


@losses
@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_losses_of_an_empty_batch_and_of_masked_rows_are_zero(random_batch, name, mode):
    batch = random_batch(2)
    masked = replace(batch, mask=torch.zeros_like(batch.mask))
    for nothing in (batch.take(torch.arange(0)), masked):
        output, gradient = nothing.loss(name, mode, nothing.denominators())
        assert output.loss.detach() == 0
        assert not gradient.any()


@estimators
def test_masked_rows_get_zero(name):
    outputs = compute_advantages(name, two_rows([1.0, 2.0, 3.0], mask=(0, 0, 0)), AdvantageConfig())
    assert not outputs.advantages.any()
    assert not outputs.returns.any()


@estimators
def test_one_token(name):
    inputs = two_rows([1.0, 2.0, 3.0], mask=(0, 1, 0))
    outputs = compute_advantages(name, inputs, AdvantageConfig())
    assert outputs.returns[1] == pytest.approx(3.0, rel=1e-5)
    assert outputs.advantages.isfinite().all()


@estimators
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_a_reward_that_is_not_finite_names_its_row(name, bad):
    with pytest.raises(NonFiniteError, match=f"the reward of row 1 is {bad}"):
        compute_advantages(name, two_rows([0.0, 1.0, bad]), AdvantageConfig())
    with pytest.raises(NonFiniteError, match=r"the reward of row 1 \(u_1_0\)"):
        compute_advantages(name, two_rows([0.0, 1.0, bad], keys=["u_0_0", "u_1_0"]), AdvantageConfig())


@estimators
def test_a_bad_reward_of_a_row_that_takes_no_part_is_ignored(name):
    outputs = compute_advantages(name, two_rows([0.0, 1.0, float("nan")], mask=(1, 1, 0)), AdvantageConfig())
    assert outputs.advantages.isfinite().all()


def test_a_value_that_is_not_finite_names_its_row():
    with pytest.raises(NonFiniteError, match="values of row 0 is nan"):
        compute_advantages("gae", two_rows([0.0, 1.0, 1.0], values=torch.tensor([0, torch.nan, 0])), AdvantageConfig())


def test_missing_values_are_named():
    with pytest.raises(MissingInputError, match="advantage estimator 'gae' needs 'values'"):
        compute_advantages("gae", two_rows([0.0, 1.0, 1.0], values=None), AdvantageConfig())


def test_a_column_of_another_length_is_named():
    with pytest.raises(AlgorithmError, match="values has 2 values for 3 tokens"):
        two_rows([0.0, 1.0, 1.0], values=torch.zeros(2))


def test_two_rows_of_one_identity_are_named():
    inputs = replace(two_rows([0.0, 1.0, 1.0]), sessions=torch.zeros(2, dtype=torch.int64))
    with pytest.raises(AlgorithmError, match="row 0 and row 1 have the same group, session and index"):
        compute_advantages("grpo", inputs, AdvantageConfig())
