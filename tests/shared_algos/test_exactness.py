"""Bitwise equality under everything that must not matter: row order, padding, neighbours, splits.

Advantages are equal before they are cast. A loss is a float64 sum whose last bits depend on the order of its terms;
by ``to_float32``, as trainers report it, it is equal in every batch tried here. Gradients are equal as they come.
"""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared_algos.advantages import ADVANTAGES, AdvantageConfig, compute_advantages
from shared_algos.aggregation import AGGREGATIONS, to_float32
from shared_algos.policy_losses import POLICY_LOSSES

BATCHES = int(os.environ.get("EXACTNESS_BATCHES", "40"))
"""Random batches of each law and name; `make evidence` takes more."""

seeds = st.integers(0, 2**32)
modes = st.sampled_from(AGGREGATIONS)
estimators = pytest.mark.parametrize("name", ADVANTAGES.names())
losses = pytest.mark.parametrize("name", [*POLICY_LOSSES.names(), "bypass_mode/reinforce", "value", "kl", "entropy"])
CONFIG = AdvantageConfig(gamma=0.99, lam=0.95, gdpo_reward_weights=(1.0, 0.5, -2.0))
WHOLE_BATCH = {"gae", "gdpo", "gpg", "reinforce_plus_plus", "reinforce_plus_plus_baseline"}
"""Estimators with a statistic of the whole batch: its mean and variance, or how many scores are not 0."""


def permutation(rows, seed):
    return torch.randperm(rows, generator=torch.Generator().manual_seed(seed))


@estimators
@settings(max_examples=BATCHES, deadline=None)
@given(seed=seeds)
def test_advantages_do_not_depend_on_row_order(random_batch, name, seed):
    batch = random_batch(seed).suited(name)
    rows = permutation(batch.segments.num_rows, seed)
    straight = compute_advantages(name, batch.inputs(), CONFIG, torch.float64)
    shuffled = compute_advantages(name, batch.take(rows).inputs(), CONFIG, torch.float64)
    tokens = batch.segments.token_indices(rows)
    assert shuffled.advantages.equal(straight.advantages[tokens])
    assert shuffled.returns.equal(straight.returns[tokens])


@estimators
@settings(max_examples=BATCHES, deadline=None)
@given(seed=seeds)
def test_advantages_do_not_depend_on_padding(random_batch, name, seed):
    batch = random_batch(seed).suited(name)
    padded = batch.padded(13)
    packed = compute_advantages(name, batch.inputs(), CONFIG, torch.float64)
    of_padded = compute_advantages(name, padded.inputs(), CONFIG, torch.float64)
    for field in ("advantages", "returns"):
        assert getattr(of_padded, field)[padded.mask.bool()].equal(getattr(packed, field)[batch.mask.bool()])
        assert not getattr(of_padded, field)[~padded.mask.bool()].any()


@pytest.mark.parametrize("name", sorted(set(ADVANTAGES.names()) - WHOLE_BATCH))
@settings(max_examples=BATCHES // 2, deadline=None)
@given(seed=seeds)
def test_groups_do_not_see_each_other(random_batch, name, seed):
    batch = random_batch(seed).suited(name)
    rows = (batch.groups == batch.groups[0]).nonzero().squeeze(1)
    whole = compute_advantages(name, batch.inputs(), CONFIG, torch.float64)
    alone = compute_advantages(name, batch.take(rows).inputs(), CONFIG, torch.float64)
    tokens = batch.segments.token_indices(rows)
    assert alone.advantages.equal(whole.advantages[tokens])
    assert alone.returns.equal(whole.returns[tokens])


@pytest.mark.parametrize("name", sorted(set(ADVANTAGES.names()) & WHOLE_BATCH))
def test_groups_that_see_each_other_are_listed(random_batch, name):
    batch = random_batch(10)
    rows = (batch.groups == batch.groups[0]).nonzero().squeeze(1)
    whole = compute_advantages(name, batch.inputs(), CONFIG).advantages[batch.segments.token_indices(rows)]
    assert not compute_advantages(name, batch.take(rows).inputs(), CONFIG).advantages.equal(whole)


@estimators
@settings(max_examples=BATCHES // 4, deadline=None)
@given(seed=seeds)
def test_rows_that_take_no_part_change_nothing(random_batch, name, seed):
    """Without them the batch has the same advantages, and their own are 0."""
    batch = random_batch(seed).suited(name)
    lengths = batch.segments.sum(batch.mask)
    rows = lengths.nonzero().squeeze(1)
    tokens = batch.segments.token_indices(rows)
    whole = compute_advantages(name, batch.inputs(), CONFIG, torch.float64)
    without = compute_advantages(name, batch.take(rows).inputs(), CONFIG, torch.float64)
    for field in ("advantages", "returns"):
        assert getattr(without, field).equal(getattr(whole, field)[tokens])
        assert not getattr(whole, field)[batch.segments.spread(lengths) == 0].any()


@losses
@settings(max_examples=BATCHES, deadline=None)
@given(seed=seeds, mode=modes, cuts=st.lists(st.integers(0, 40), max_size=5))
def test_losses_do_not_depend_on_order_and_splits(random_batch, name, seed, mode, cuts):
    """Rows in another order, cut into micro-batches anywhere (an empty one included): the parts add up."""
    batch = random_batch(seed).selected(name)
    denominators = batch.denominators()
    whole, gradient = batch.loss(name, mode, denominators)
    rows = permutation(batch.segments.num_rows, seed)
    parts = [batch.take(part).loss(name, mode, denominators) for part in rows.tensor_split(sorted(cuts))]
    assert to_float32(sum(part.loss for part, _ in parts)).equal(to_float32(whole.loss))
    for metric, value in whole.metrics.items():
        assert to_float32(sum(part.metrics[metric] for part, _ in parts)).equal(to_float32(value))
    assert torch.cat([grad for _, grad in parts]).equal(gradient[batch.segments.token_indices(rows)])


@losses
@settings(max_examples=BATCHES, deadline=None)
@given(seed=seeds, mode=modes)
def test_losses_do_not_depend_on_padding(random_batch, name, seed, mode):
    batch = random_batch(seed)
    padded, batch = batch.padded(13).selected(name), batch.selected(name)
    packed_loss, packed_gradient = batch.loss(name, mode, batch.denominators())
    padded_loss, padded_gradient = padded.loss(name, mode, padded.denominators())
    assert padded_loss.loss.equal(packed_loss.loss)
    assert padded_gradient[padded.mask.bool()].equal(packed_gradient[batch.mask.bool()])
    assert not padded_gradient[~padded.mask.bool()].any()


def test_totals_do_not_depend_on_threads(random_batch):
    """Long enough for torch to share a plain sum among threads, in float64, where a sum of float64 is not exact."""
    batch = random_batch(3, torch.float64).take(torch.arange(5).repeat(20_000))
    one, _ = batch.loss("vanilla", "token-mean", batch.denominators())
    torch.set_num_threads(2)
    two, _ = batch.loss("vanilla", "token-mean", batch.denominators())
    torch.set_num_threads(1)
    assert one.loss.equal(two.loss)
    assert one.metrics == two.metrics
