"""Bitwise equality under row order and padding, metrics included; extreme input gives a finite result or an error."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared_algos.errors import NonFiniteError
from shared_algos.rollout_correction import (
    REJECTION_MODES,
    WEIGHT_LEVELS,
    RolloutCorrectionConfig,
    correct,
    off_policy_metrics,
)
from shared_algos.segments import Segments

seeds = st.integers(0, 2**32)
configs = st.builds(
    dict,
    rollout_is=st.sampled_from([None, *WEIGHT_LEVELS]),
    rollout_is_threshold=st.sampled_from([2.0, "0.5_2.0"]),
    rollout_is_batch_normalize=st.booleans(),
    rollout_rs_threshold=st.sampled_from([1.2, 3.0]),
)
ALL_MODES = ",".join(REJECTION_MODES)
modes = pytest.mark.parametrize("mode", [*REJECTION_MODES, ALL_MODES], ids=[*REJECTION_MODES, "all"])
levels = pytest.mark.parametrize("level", [None, *WEIGHT_LEVELS])


def corrected(batch, config):
    return correct(batch.new, batch.old, batch.mask, batch.segments, config)


@modes
@settings(max_examples=200, deadline=None)
@given(seed=seeds, config=configs)
def test_row_order_and_padding_do_not_matter(random_batch, mode, seed, config):
    """Rows in another order, among them two of mask 0, and NaN at the end of each of them."""
    batch, config = random_batch(seed), RolloutCorrectionConfig(rollout_rs=mode, **config)
    order = torch.randperm(batch.segments.num_rows, generator=torch.Generator().manual_seed(seed))
    other = batch.padded(13).take(torch.cat([order[:1], order, order[:1]]))
    inside = (other.segments.rows > 0) & (other.segments.rows <= len(order))
    other = replace(other, mask=other.mask * inside)
    packed, found = corrected(batch, config), corrected(other, config)
    tokens, real = batch.segments.token_indices(order), other.mask.bool()
    tokens = tokens[batch.mask[tokens].bool()]
    assert found.metrics == packed.metrics
    assert found.response_mask[real].equal(packed.response_mask[tokens])
    assert not found.response_mask[~real].any()
    if config.rollout_is is not None:
        assert found.weights[real].equal(packed.weights[tokens])
        assert not found.weights[found.response_mask == 0].any()


@settings(max_examples=50, deadline=None)
@given(seed=seeds, config=configs)
def test_a_list_keeps_what_all_of_its_modes_keep(random_batch, seed, config):
    batch = random_batch(seed)
    alone = [
        corrected(batch, RolloutCorrectionConfig(rollout_rs=mode, **config)).response_mask for mode in REJECTION_MODES
    ]
    together = corrected(batch, RolloutCorrectionConfig(rollout_rs=ALL_MODES, **config)).response_mask
    assert together.equal(torch.stack(alone).amin(0))


@settings(max_examples=50, deadline=None)
@given(seed=seeds, config=configs)
def test_metrics_without_correction_are_among_those_of_it(random_batch, seed, config):
    batch = random_batch(seed)
    correction = corrected(batch, RolloutCorrectionConfig(rollout_rs=ALL_MODES, **config))
    plain = off_policy_metrics(batch.new, batch.old, batch.mask, batch.segments)
    assert plain.items() <= correction.metrics.items()


@levels
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("offset", [1e4, -1e4, float("inf"), float("-inf"), 1e38])
def test_extreme_log_ratios_give_finite_results(random_batch, level, normalize, offset):
    batch = random_batch(1)
    config = RolloutCorrectionConfig(level, 2.0, normalize, ALL_MODES, 2.0)
    for training, rollout in ((batch.old + offset, batch.old), (batch.old, batch.old + offset)):
        correction = correct(training, rollout, batch.mask, batch.segments, config)
        assert all(torch.tensor(list(correction.metrics.values())).isfinite())
        assert not correction.response_mask.any()
        assert level is None or correction.weights.isfinite().all()


@levels
@pytest.mark.parametrize("threshold", [2.0, "0.5_2.0"])
def test_two_infinite_log_probs_are_equal(level, threshold):
    infinite, mask = torch.full((2,), float("-inf")), torch.ones(2)
    config = RolloutCorrectionConfig(level, threshold, False, ALL_MODES, 2.0)
    correction = correct(infinite, infinite, mask, Segments.from_lengths([1, 1]), config)
    assert correction.response_mask.equal(mask)
    assert level is None or correction.weights.equal(mask)


@levels
@pytest.mark.parametrize("rows", [0, 3])
def test_nothing_to_correct(random_batch, level, rows):
    """No rows, or rows of mask 0, some without tokens."""
    batch = random_batch(3).take(torch.arange(rows))
    batch = replace(batch, mask=torch.zeros_like(batch.mask), new=batch.new * torch.nan)
    correction = corrected(batch, RolloutCorrectionConfig(level, 2.0, True, ALL_MODES, 2.0))
    assert correction.metrics == {}
    assert not correction.response_mask.any()
    assert level is None or not correction.weights.any()
    assert off_policy_metrics(batch.new, batch.old, batch.mask, batch.segments) == {}


@levels
def test_one_token(level):
    config = RolloutCorrectionConfig(level, 2.0, True, ALL_MODES, 2.0)
    correction = correct(torch.zeros(1), torch.zeros(1), torch.ones(1), Segments.from_lengths([1]), config)
    assert correction.metrics["rollout_corr/rollout_rs_token_k1_seq_std"] == 0
    assert all(torch.tensor(list(correction.metrics.values())).isfinite())
    assert level is None or correction.weights.tolist() == [1]


@pytest.mark.parametrize("column", ["new", "old"])
def test_a_log_prob_that_is_nan_names_its_row(random_batch, column):
    batch = replace(random_batch(5), segments=Segments.from_lengths([2, 0, 3]))
    values = torch.zeros(5)
    values[3] = torch.nan
    batch = replace(batch, mask=torch.ones(5), **{"new": torch.zeros(5), "old": torch.zeros(5), column: values})
    policy = "training" if column == "new" else "rollout"
    with pytest.raises(NonFiniteError, match=f"the {policy} log-prob of row 2 is nan at token 1"):
        corrected(batch, RolloutCorrectionConfig())


def test_metrics_do_not_depend_on_threads(random_batch):
    batch = random_batch(3, torch.float64).take(torch.arange(5).repeat(20_000))
    config = RolloutCorrectionConfig("token", 2.0, True, ALL_MODES, 2.0)
    one = corrected(batch, config)
    torch.set_num_threads(2)
    two = corrected(batch, config)
    torch.set_num_threads(1)
    assert one.metrics == two.metrics
    assert one.weights.equal(two.weights)
