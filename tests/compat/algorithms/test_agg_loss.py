"""``agg_loss`` inside and outside of a mini-batch, and the reductions beside it."""

from __future__ import annotations

import logging

import pytest
import torch

from compat.algorithms import agg_loss
from compat.algorithms import mini_batch as mini_batches
from compat.algorithms.mini_batch import ActiveMiniBatch, activate
from compat.algorithms.torch_functional import (
    clip_by_value,
    entropy_from_logits,
    logprobs_from_logits,
    masked_mean,
    masked_sum,
    masked_var,
    masked_whiten,
)
from compat.errors import CustomFunctionError
from shared_algos.aggregation import AGGREGATIONS, Denominators
from shared_algos.errors import AlgorithmError
from shared_algos.policy_losses import PolicyLossConfig

LOSSES = torch.tensor([[1.0, 2.0, 3.0, torch.nan], [4.0, torch.nan, torch.nan, torch.nan], [torch.nan] * 4])
MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
OWN = {
    "token-mean": 10 / 4,
    "token-sum": 10.0,
    "seq-mean-token-sum": (6 + 4) / 2,
    "seq-mean-token-mean": (2 + 4) / 2,
    "seq-mean-token-sum-norm": (6 + 4) / 2 / 4,
}
"""The rows at hand are the mini-batch; the horizon is the width."""
WHOLE = {
    "token-mean": 10 / 40,
    "token-sum": 10.0,
    "seq-mean-token-sum": 10 / 5,
    "seq-mean-token-mean": 6 / 5,
    "seq-mean-token-sum-norm": 10 / 5 / 100,
}
"""40 tokens in 5 rows; the horizon is 100."""


def mini_batch():
    return ActiveMiniBatch("a loss", Denominators(torch.tensor(40.0), 5.0, 100.0), PolicyLossConfig())


@pytest.mark.parametrize("mask", [MASK, MASK.bool(), MASK.float()])
@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_outside_of_a_mini_batch_it_is_verls(mode, mask):
    loss = agg_loss(LOSSES, mask, mode)
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(OWN[mode])
    counts = {"batch_num_tokens": 40, "global_batch_size": torch.tensor(5), "loss_scale_factor": 100}
    assert float(agg_loss(LOSSES, mask, mode, dp_size=2, **counts)) == pytest.approx(2 * WHOLE[mode])


def test_ranks_without_counts_are_refused_outside():
    for mode, needed in (("token-mean", "batch_num_tokens"), ("seq-mean-token-mean", "global_batch_size")):
        with pytest.raises(AlgorithmError, match=needed):
            agg_loss(LOSSES, MASK, mode, dp_size=2)
    assert float(agg_loss(LOSSES, MASK, "token-sum", dp_size=2)) == 20


@pytest.mark.parametrize("arguments", [{}, {"dp_size": 2}, {"batch_num_tokens": 40, "global_batch_size": 5}])
@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_inside_it_divides_by_the_mini_batch(mode, arguments):
    with activate(mini_batch()) as _:
        loss = agg_loss(LOSSES, MASK, mode, **arguments)
    assert loss.dtype == torch.float64
    assert float(loss) == pytest.approx(WHOLE[mode])


def test_a_horizon_is_the_callers_to_choose():
    with activate(mini_batch()):
        loss = agg_loss(LOSSES, MASK, "seq-mean-token-sum-norm", loss_scale_factor=10)
    assert float(loss) == pytest.approx(10 / 5 / 10)


def test_counts_that_contradict_the_mini_batch_are_reported_once(caplog, monkeypatch):
    monkeypatch.setattr(mini_batches, "_warned", set())
    with caplog.at_level(logging.WARNING), activate(mini_batch()):
        for _ in range(2):
            assert float(agg_loss(LOSSES, MASK, "token-mean", batch_num_tokens=MASK.sum())) == 0.25
    (record,) = caplog.records
    assert "a loss passes batch_num_tokens" in record.getMessage()


def test_the_mini_batch_ends_with_its_block():
    with pytest.raises(ZeroDivisionError), activate(mini_batch()):
        raise ZeroDivisionError
    assert float(agg_loss(LOSSES, MASK, "token-mean")) == 2.5


def test_nothing_to_count_is_zero_with_a_zero_gradient():
    losses = LOSSES.clone().requires_grad_()
    empty = ActiveMiniBatch("a loss", Denominators(0.0, 0.0, 100.0), PolicyLossConfig())
    for mode in AGGREGATIONS:
        with activate(empty):
            loss = agg_loss(losses, torch.zeros_like(MASK), mode)
        loss.backward()
        assert float(loss.detach()) == 0
    assert not losses.grad.any()


@pytest.mark.parametrize(
    ("losses", "mask", "message"),
    [
        (LOSSES[0], MASK[0], r"\(4,\)"),
        (LOSSES, MASK[:, :2], r"\(3, 4\) and loss_mask \(3, 2\)"),
        (LOSSES, 0.5 * MASK, "neither 0 nor 1"),
    ],
)
def test_what_is_no_masked_matrix_is_refused(losses, mask, message):
    with pytest.raises(CustomFunctionError, match=message):
        agg_loss(losses, mask, "token-mean")
    with pytest.raises(AlgorithmError, match="token-avg"):
        agg_loss(LOSSES, MASK, "token-avg")


def test_masked_reductions():
    assert masked_sum(LOSSES, MASK).tolist() == 10
    assert masked_sum(LOSSES, MASK.bool(), axis=-1).tolist() == [6, 4, 0]
    assert masked_mean(LOSSES, MASK, axis=1).tolist() == [2, 4, 0]
    assert float(masked_mean(LOSSES, MASK)) == 2.5
    assert masked_mean(LOSSES, MASK).dtype == torch.float32
    kept = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert float(masked_var(LOSSES, MASK)) == pytest.approx(float(kept.var()))
    assert float(masked_var(LOSSES, MASK, unbiased=False)) == pytest.approx(float(kept.var(unbiased=False)))
    whitened = masked_whiten(LOSSES, MASK)[MASK.bool()]
    assert whitened.tolist() == pytest.approx(((kept - kept.mean()) / kept.std()).tolist(), rel=1e-5)
    shifted = masked_whiten(LOSSES, MASK, shift_mean=False)[MASK.bool()]
    assert shifted.tolist() == pytest.approx((whitened + 2.5).tolist(), rel=1e-5)
    for mask in (torch.zeros(1, 2), torch.tensor([[1, 0]])):
        with pytest.raises(ValueError, match="two elements"):
            masked_var(torch.ones(1, 2), mask)


def test_a_sum_does_not_depend_on_padding():
    values = torch.randn(1, 1001, generator=torch.Generator().manual_seed(0))
    padded, mask = torch.nn.functional.pad(values, (0, 777)), torch.nn.functional.pad(torch.ones(1, 1001), (0, 777))
    assert masked_sum(padded, mask).equal(masked_sum(values, torch.ones_like(values)))


def test_functions_of_logits():
    logits = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    distribution = torch.distributions.Categorical(logits=logits)
    labels = distribution.sample()
    torch.testing.assert_close(entropy_from_logits(logits), distribution.entropy())
    torch.testing.assert_close(logprobs_from_logits(logits, labels), distribution.log_prob(labels))
    low, high = torch.tensor([0.0, 3.0]), torch.tensor([1.0, 2.0])
    assert clip_by_value(torch.tensor([5.0, 5.0]), low, high).tolist() == [1, 3]
