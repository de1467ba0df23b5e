"""Right values of every loss where trainers are known to have gone wrong; numbered as in the design notes."""

import pytest
import torch

from shared_algos.aggregation import AGGREGATIONS, Denominators, to_float32
from shared_algos.entropy import entropy_loss
from shared_algos.policy_losses import (
    POLICY_LOSSES,
    PolicyLossConfig,
    PolicyLossInputs,
    compute_policy_loss,
    select_tokens,
)
from shared_algos.rollout_correction import RolloutCorrectionConfig
from shared_algos.segments import Segments

TWO_ROWS = Segments.from_lengths([3, 5])
ADVANTAGES = torch.tensor([1.0] * 3 + [-0.5] * 5)
NAMES = [*POLICY_LOSSES.names(), "bypass_mode/reinforce"]
LOSSES = [*NAMES, "value", "kl", "entropy"]

SIGNS = {"vanilla": 1, "gspo": 1, "clip_cov": 1, "kl_cov": 1, "bypass_mode": 1} | dict.fromkeys(
    ("gpg", "dro", "cispo", "dppo_tv", "dppo_kl", "bypass_mode/reinforce"), -1
)
"""Losses that are the mean of -advantage * ratio, or of -advantage * log-prob, at ratio 1 and log-prob -1."""


def loss_of(name, mask, mode, denominators, rows=slice(None), segments=TWO_ROWS):
    """A policy loss at ratio 1 and log-prob -1, nothing selected and no token rejected."""
    name, _, form = name.partition("/")
    config = PolicyLossConfig(
        loss_agg_mode=mode,
        dro_beta=0.3,
        rollout_correction=RolloutCorrectionConfig(loss_type=form or "ppo_clip"),
    )
    log_probs = -torch.ones(len(mask))
    nothing = torch.zeros(len(mask), dtype=torch.bool)
    inputs = PolicyLossInputs(log_probs, log_probs, ADVANTAGES[rows], mask, segments, denominators, selected=nothing)
    return float(compute_policy_loss(name, inputs, config).loss)


@pytest.mark.parametrize(("name", "sign"), SIGNS.items())
def test_case_1_rejected_tokens_leave_the_denominator(name, sign):
    mask = torch.tensor([1, 1, 1, 1, 1, 0, 0, 0])
    assert loss_of(name, mask, "token-mean", Denominators.count(mask, TWO_ROWS, 8)) == pytest.approx(sign * -0.40)


@pytest.mark.parametrize(("name", "loss"), [("geo_mean", -0.25), ("sapo", -(1.0 * 2 - 0.5 * 2 / 1.05) / 2)])
def test_case_1_losses_of_rows_average_over_rows(name, loss):
    """They do not read the mode; a row's mean does not feel its rejected tokens."""
    mask = torch.tensor([1, 1, 1, 1, 1, 0, 0, 0])
    assert loss_of(name, mask, "token-mean", Denominators.count(mask, TWO_ROWS, 8)) == pytest.approx(loss)


def test_case_1_bypass_mode_counts_after_its_own_rejection():
    """The second row's ratios are 4 except for its first two tokens': those three are rejected, five tokens count."""
    log_probs, mask = torch.zeros(8), torch.ones(8)
    rollout = torch.tensor([0.0] * 5 + [-1.4] * 3)
    correction = RolloutCorrectionConfig(rollout_rs="token_k1", rollout_rs_threshold=2.0)
    config = PolicyLossConfig(rollout_correction=correction)
    inputs = PolicyLossInputs(log_probs, rollout, ADVANTAGES, mask, TWO_ROWS, Denominators.count(mask, TWO_ROWS, 8))
    kept = select_tokens("bypass_mode", inputs, config, torch.Generator()).response_mask
    assert kept.tolist() == [1] * 5 + [0] * 3
    inputs = PolicyLossInputs(log_probs, rollout, ADVANTAGES, kept, TWO_ROWS, Denominators.count(kept, TWO_ROWS, 8))
    assert float(compute_policy_loss("bypass_mode", inputs, config).loss) == pytest.approx(-0.40)


@pytest.mark.parametrize(("name", "sign"), SIGNS.items())
def test_case_2_the_horizon_is_the_configured_length(name, sign):
    mask, mode = torch.ones(8), "seq-mean-token-sum-norm"
    denominators = Denominators.count(mask, TWO_ROWS, 8)
    assert loss_of(name, mask, mode, denominators) == pytest.approx(sign * -0.03125)
    one_row_each = [
        loss_of(name, mask[rows], mode, denominators, rows, Segments.from_lengths([rows.stop - rows.start]))
        for rows in (slice(0, 3), slice(3, 8))
    ]
    assert sum(one_row_each) == pytest.approx(sign * -0.03125)


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_case_10_micro_batches_and_ranks_add_up(random_batch, name, mode, size):
    batch = random_batch(10).selected(name)
    rows = torch.arange(batch.segments.num_rows)
    whole, gradient = batch.loss(name, mode, batch.denominators())
    for ranks in (1, 2):
        parts = [part for share in rows.tensor_split(ranks) for part in share.split(size)]
        outputs = [batch.take(part).loss(name, mode, batch.denominators()) for part in parts]
        assert to_float32(sum(output.loss for output, _ in outputs)).equal(to_float32(whole.loss))
        assert torch.cat([part for _, part in outputs]).equal(gradient)


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_case_17_padding_rows_weigh_nothing(random_batch, name, mode):
    """Rows of mask 0 and of far-off values beside the real ones: not even the selection takes notice of them."""
    real = random_batch(11)
    rows, count = torch.arange(real.segments.num_rows), real.segments.num_rows
    both = real.take(torch.cat([rows, rows.flip(0)]))
    padding = both.segments.rows >= count
    both.mask = torch.where(padding, 0, both.mask)
    both.new, both.targets = (torch.where(padding, 7 * column - 3, column) for column in (both.new, both.targets))
    real, both = real.selected(name), both.selected(name)
    alone, gradient = real.loss(name, mode, real.denominators())
    padded, of_padded = both.loss(name, mode, both.denominators())
    assert padded.loss.equal(alone.loss)
    assert padded.metrics == alone.metrics
    assert of_padded[: len(gradient)].equal(gradient)
    assert not of_padded[len(gradient) :].any()


def test_entropy_is_aggregated_as_the_loss_is():
    """Entropies 2 and 1: over 5 tokens of which 3 have 2, or over two rows."""
    entropy, mask = torch.tensor([2.0] * 3 + [1.0] * 2 + [torch.nan] * 3), torch.tensor([1] * 5 + [0] * 3)
    denominators = Denominators.count(mask, TWO_ROWS, 8)
    values = {mode: float(entropy_loss(entropy, mask, TWO_ROWS, denominators, mode)) for mode in AGGREGATIONS}
    assert values == {
        "token-mean": pytest.approx(1.6),
        "token-sum": 8,
        "seq-mean-token-sum": 4,
        "seq-mean-token-mean": 1.5,
        "seq-mean-token-sum-norm": 0.5,
    }
