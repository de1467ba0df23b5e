"""Deviations R1 to R15 of docs/deviations.md: what verl 0.9.1 gives and what we give instead."""

import math

import pytest
import torch

from shared_algos.errors import AlgorithmError, NonFiniteError
from shared_algos.group_filter import groups_with_spread
from shared_algos.pf_ppo import resample
from shared_algos.rollout_correction import RolloutCorrectionConfig, correct
from shared_algos.segments import Segments

pytestmark = pytest.mark.oracle
ICEPOP = {"rollout_is": "token", "rollout_is_threshold": "0.5_2.0"}


def both(verl, training, rollout, mask, **settings):
    """Weights, mask ``[B, R]`` and metrics of columns given as lists of rows: verl's and ours."""
    training, rollout, mask = torch.tensor(training), torch.tensor(rollout), torch.tensor(mask)
    weights, theirs_mask, metrics = verl(
        "rollout_correction", old_log_prob=training, rollout_log_prob=rollout, response_mask=mask, **settings
    )
    return (weights, theirs_mask, without_prefix(metrics)), ours(training, rollout, mask, **settings)


def ours(training, rollout, mask, **settings):
    segments = Segments.from_lengths([mask.shape[1]] * len(mask))
    columns = (training.flatten(), rollout.flatten(), mask.flatten())
    found = correct(*columns, segments, RolloutCorrectionConfig(**settings))
    weights = None if found.weights is None else found.weights.view(mask.shape)
    return weights, found.response_mask.view(mask.shape), without_prefix(found.metrics)


def without_prefix(metrics):
    return {name.removeprefix("rollout_corr/"): value for name, value in metrics.items()}


def test_r1_masked_rows_weigh_nothing(verl):
    half = math.log(0.5)
    (_, _, theirs), (_, _, found) = both(
        verl, [[half], [half]], [[0.0], [0.0]], [[1], [0]], rollout_is="token", rollout_rs="token_k2",
        rollout_rs_threshold=0.1,
    )  # fmt: skip
    names = ("training_ppl", "rollout_is_seq_mean", "rollout_rs_seq_masked_fraction")
    assert [theirs[name] for name in names] == pytest.approx([1.5, 0.25, 0.5])
    assert [found[name] for name in names] == pytest.approx([2.0, 0.5, 1.0])


def test_r2_a_batch_without_tokens_comes_back_as_it_is(verl):
    nothing = torch.zeros(2, 3)
    with pytest.raises(AssertionError, match="at least one valid token"):
        verl("rollout_correction", old_log_prob=nothing, rollout_log_prob=nothing, response_mask=nothing.long())
    weights, mask, metrics = ours(nothing, nothing, nothing.long(), rollout_is="token")
    assert not weights.any()
    assert not mask.any()
    assert metrics == {}


def test_r3_what_stands_on_a_masked_token_does_not_reach_its_weight(verl):
    (theirs, _, _), (found, _, _) = both(verl, [[0.0, math.nan]], [[0.0, 0.0]], [[1, 0]], rollout_is="token")
    assert theirs[0, 1].isnan()
    assert found.tolist() == [[1, 0]]


def test_r4_rejected_tokens_have_weight_zero(verl):
    settings = {"rollout_is": "token", "rollout_rs": "token_k2", "rollout_rs_threshold": 0.1}
    (theirs, _, _), (found, mask, _) = both(verl, [[0.0, 1.0]], [[0.0, 0.0]], [[1, 1]], **settings)
    assert mask.tolist() == [[1, 0]]
    assert theirs.tolist() == [[1, 2]]
    assert found.tolist() == [[1, 0]]


def test_r5_no_weight_inside_the_bounds(verl):
    training, rollout, mask = torch.tensor([[5.0]]), torch.tensor([[0.0]]), torch.tensor([[1]])
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        verl("rollout_correction", old_log_prob=training, rollout_log_prob=rollout, response_mask=mask, **ICEPOP)
    weights, _, metrics = ours(training, rollout, mask, **ICEPOP)
    assert weights.tolist() == [[0]]
    assert metrics["rollout_is_eff_sample_size"] == 0


def test_r6_exponents_stop_at_twenty(verl):
    (_, _, theirs), (_, _, found) = both(verl, [[-1e3, 0.0]], [[-2e3, 0.0]], [[1, 1]], rollout_is="sequence")
    for name in ("training_ppl", "rollout_ppl", "k3_kl", "rollout_is_min"):
        assert theirs[name] == math.inf
        assert found[name] <= math.exp(20)


def test_r7_an_infinite_log_prob_is_the_largest_number(verl):
    (_, _, theirs), (_, _, found) = both(verl, [[-math.inf, -1.0]], [[-math.inf, -1.0]], [[1, 1]])
    assert math.isnan(theirs["kl"])
    assert found["kl"] == 0
    assert all(map(math.isfinite, found.values()))


def test_r8_a_log_prob_that_is_nan_is_refused(verl):
    training, rollout, mask = torch.tensor([[0.0], [math.nan]]), torch.zeros(2, 1), torch.ones(2, 1).long()
    columns = {"old_log_prob": training, "rollout_log_prob": rollout, "response_mask": mask}
    weights, _, _ = verl("rollout_correction", rollout_is="token", **columns)
    assert weights.isnan().any()
    with pytest.raises(NonFiniteError, match="the training log-prob of row 1 is nan at token 0"):
        ours(training, rollout, mask, rollout_is="token")


def test_r9_k3_keeps_its_digits_in_float32(verl):
    exact = 0.5 * 2e-4**2
    (_, _, theirs), (_, _, found) = both(verl, [[2e-4]], [[0.0]], [[1]])
    assert abs(theirs["k3_kl"] - exact) > 0.2 * exact
    assert found["k3_kl"] == pytest.approx(exact, rel=1e-3)


def test_r10_equal_weights_have_no_spread(verl):
    (_, _, theirs), (_, _, found) = both(verl, [[0.37] * 3], [[0.0] * 3], [[1] * 3], rollout_is="token")
    assert theirs["rollout_is_std"] > 1e-5
    assert found["rollout_is_std"] < 1e-15


@pytest.mark.parametrize(("threshold", "read"), [("1_2_3", (23.0, 1.0)), ("nan", (math.nan, None))])
def test_r11_thresholds_that_are_no_thresholds(verl, threshold, read):
    assert repr(verl("weight_bounds", threshold=threshold)) == repr(read)
    with pytest.raises(AlgorithmError, match="rollout_is_threshold is"):
        RolloutCorrectionConfig(rollout_is_threshold=threshold)


def test_r11_weights_without_a_threshold(verl):
    one = torch.ones(1, 1)
    columns = {"old_log_prob": one, "rollout_log_prob": one, "response_mask": one.long()}
    weights, _, _ = verl("rollout_correction", rollout_is="token", rollout_is_threshold=None, **columns)
    assert weights is None
    with pytest.raises(AlgorithmError, match="rollout_is_threshold is None"):
        RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=None)


def test_r12_rows_that_take_no_part_are_not_drawn(verl):
    scores, alive = torch.tensor([100.0, 1.0, 1.0]), torch.tensor([False, True, True])
    theirs = verl("pf_ppo", token_level_scores=scores[:, None], seed=0, reweight_method="pow", weight_pow=2.0)
    assert 0 in theirs
    for seed in range(20):
        found = resample(scores, "pow", 2.0, torch.Generator().manual_seed(seed), alive).tolist()
        assert found[0] == 0
        assert set(found[1:]) <= {1, 2}


def test_r13_a_score_that_is_not_finite_names_its_row(verl):
    scores = torch.tensor([1.0, math.nan])
    with pytest.raises(AssertionError, match="invalid multinomial distribution"):
        verl("pf_ppo", token_level_scores=scores[:, None], seed=0, reweight_method="pow", weight_pow=2.0)
    with pytest.raises(NonFiniteError, match="the score of row 1 is nan"):
        resample(scores, "pow", 2.0, torch.Generator())


def test_r14_equal_values_are_equal(verl):
    values = torch.full((7,), 3.3, dtype=torch.float64)
    assert verl("groups_without_spread", values=list(values), uids=["u"] * 7) == set()
    assert not groups_with_spread(values, torch.zeros(7, dtype=torch.int64)).any()


def test_r15_a_group_that_cannot_be_judged(verl):
    values = torch.tensor([math.nan, 1.0])
    assert verl("groups_without_spread", values=list(values), uids=["u"] * 2) == set()
    with pytest.raises(NonFiniteError, match="the value of row 0 is nan"):
        groups_with_spread(values, torch.zeros(2, dtype=torch.int64))
