"""Rollout correction, PF-PPO and group filtering against verl 0.9.1 on 200 random ragged batches, float64 in both.

Weights and metrics agree within 1e-9 relative, fractions (float32 in verl) within 1e-6, masks and draws exactly. What
differs by intent is in docs/deviations.md and in test_rollout_correction_deviations.py.
"""

import numpy as np
import pytest
import torch

from shared_algos.group_filter import groups_with_spread
from shared_algos.pf_ppo import METHODS, resample
from shared_algos.rollout_correction import (
    REJECTION_MODES,
    WEIGHT_LEVELS,
    RolloutCorrectionConfig,
    correct,
    off_policy_metrics,
)

pytestmark = pytest.mark.oracle
SCALES = (0.02, 0.3, 1.0, 3.0)  # of the log-ratios: hardly any, some, and most of them beyond the thresholds
LISTS = [
    ("token_k1,seq_mean_k3", "0.4_3.0,0.2"),
    ("seq_max_k2, token_k3,seq_sum_k1", 1.5),
    ("token_k2,token_k2,seq_max_k3", "0.5,4.0"),
]


def log_probs(batch, number):
    """Log-probs of the training and of the rollout policy, ``[B, R]``."""
    training = -batch.column().abs()
    return training, training - batch.column(SCALES[number % len(SCALES)])


def agree(ours, theirs):
    """Metrics by name. verl takes the std from a difference of squares: compare squares, where its error is small."""
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        square = name.endswith("_std") and not name.endswith("_seq_std")
        ours_here, theirs_here = (ours[name] ** 2, value**2) if square else (ours[name], value)
        assert ours_here == pytest.approx(theirs_here, rel=1e-6 if "fraction" in name or "oob" in name else 1e-9), name


def check(verl, batch, number, **settings):
    training, rollout = log_probs(batch, number)
    packed = map(batch.pack, (training, rollout, batch.mask))
    ours = correct(*packed, batch.segments, RolloutCorrectionConfig(**settings))
    if ours.metrics.get("rollout_corr/rollout_is_oob_ratio") == 1:
        return  # verl divides by zero: R5
    weights, mask, metrics = verl(
        "rollout_correction",
        old_log_prob=training,
        rollout_log_prob=rollout,
        response_mask=batch.mask,
        **settings,
    )
    assert ours.response_mask.equal(batch.pack(mask))
    agree(ours.metrics, metrics)
    if weights is None:
        assert ours.weights is None
    else:
        kept = ours.response_mask.bool()
        torch.testing.assert_close(ours.weights[kept], batch.pack(weights)[kept], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("threshold", [2.0, "1.2", "0.5_2.0", "0.9_1.1"])
@pytest.mark.parametrize("level", WEIGHT_LEVELS)
def test_importance_weights(verl, batches, level, threshold, normalize):
    for number, batch in enumerate(batches):
        check(
            verl,
            batch,
            number,
            rollout_is=level,
            rollout_is_threshold=threshold,
            rollout_is_batch_normalize=normalize,
        )


@pytest.mark.parametrize("mode", REJECTION_MODES)
def test_rejection(verl, batches, mode):
    thresholds = ("0.5_3.0", "1.3", 2) if mode.endswith("k1") else (0.1, "1.0", 4)
    for number, batch in enumerate(batches):
        check(verl, batch, number, rollout_rs=mode, rollout_rs_threshold=thresholds[number % 3])


@pytest.mark.parametrize(("modes", "threshold"), LISTS)
@pytest.mark.parametrize("level", [None, *WEIGHT_LEVELS])
def test_lists_of_modes_beside_weights(verl, batches, level, modes, threshold):
    for number, batch in enumerate(batches):
        check(verl, batch, number, rollout_is=level, rollout_rs=modes, rollout_rs_threshold=threshold)


@pytest.mark.parametrize("known", [True, False], ids=["with rollout log-probs", "without"])
def test_off_policy_metrics(verl, batches, known):
    for number, batch in enumerate(batches):
        training, rollout = log_probs(batch, number)
        rollout = rollout if known else None
        packed = batch.pack(rollout) if known else None
        ours = off_policy_metrics(batch.pack(training), packed, batch.pack(batch.mask), batch.segments)
        theirs = verl("off_policy_metrics", old_log_prob=training, rollout_log_prob=rollout, response_mask=batch.mask)
        agree(ours, {f"rollout_corr/{name}": value for name, value in theirs.items()})


@pytest.mark.parametrize(("method", "power"), [*((method, 2.0) for method in METHODS), ("pow", 0.5), ("pow", 3)])
def test_pf_ppo(verl, batches, method, power):
    """Some scores are equal, and the draws of one generator state are the same rows."""
    for number, batch in enumerate(batches):
        scores = batch.rewards().sum(1).round(decimals=number % 3)
        theirs = verl(
            "pf_ppo", token_level_scores=scores[:, None], seed=number, reweight_method=method, weight_pow=power
        )
        ours = resample(scores, method, power, torch.Generator().manual_seed(number))
        assert ours.tolist() == theirs.tolist()


def test_group_filtering(verl, batches):
    """Rewards of 0, 0.5 and 1, whose mean has no rounding: R14 is about others."""
    found = 0
    for batch in batches:
        values = torch.from_numpy(batch.random.integers(0, 3, len(batch.groups)) / 2)
        values[batch.groups % 2 == 0] = 0.5
        dropped = verl("groups_without_spread", values=list(values), uids=[f"u{group}" for group in batch.groups])
        found += len(dropped)
        expected = ~np.isin([f"u{group}" for group in batch.groups], list(dropped))
        assert groups_with_spread(values, batch.groups).tolist() == expected.tolist()
    assert found > 20
