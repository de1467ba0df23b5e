"""Every policy loss against verl 0.9.1 on 200 random ragged batches, float64 in both: loss, gradient and metrics.

Agreement is within 1e-9 relative on mask-1 tokens; shares of tokens, float32 in verl whatever its input, within 1e-6.
Here a batch is one micro-batch and the whole mini-batch, so that losses that select tokens see the same ones in both.
What differs by intent is in docs/deviations.md and in test_loss_deviations.py.
"""

import itertools

import pytest
import torch

from shared_algos.aggregation import AGGREGATIONS, Denominators
from shared_algos.policy_losses import (
    POLICY_LOSSES,
    PolicyLossConfig,
    PolicyLossInputs,
    compute_policy_loss,
    select_tokens,
)
from shared_algos.rollout_correction import RolloutCorrectionConfig

pytestmark = pytest.mark.oracle
HORIZON = 24  # the padded width, which is what verl divides by where loss_scale_factor is not set
SCALES = (0.02, 0.3, 1.0, 3.0)  # of the log-ratios: hardly any, some, and most tokens outside the clip range
BOUNDED = {"vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "cispo"}  # verl bounds their ratio, so any may be compared

NARROW = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}
WIDE = {"clip_ratio": 0.4, "clip_ratio_low": None, "clip_ratio_high": None, "clip_ratio_c": 20.0}
WEIGHED = {"rollout_is": "token", "rollout_is_batch_normalize": True}
REJECTED = {"rollout_rs": "seq_mean_k1,token_k2", "rollout_rs_threshold": "0.1_10.0,8.0"}
SETTINGS = {
    "sapo": [{}, {"tau_pos": 0.5, "tau_neg": 3.0}],
    "gpg": [{}],
    "clip_cov": [NARROW, {"clip_cov_ratio": 0.1, "clip_cov_lb": 0.1, "clip_cov_ub": 2.0}],
    "kl_cov": [{}, {"kl_cov_ratio": 0.2, "ppo_kl_coef": 1.0}],
    "dro": [{"dro_beta": 0.1}, {"dro_beta": 3.0}],
    "bypass_mode": [
        {"rollout_correction": {"loss_type": form} | correction}
        for form in ("ppo_clip", "reinforce")
        for correction in ({"rollout_is": None}, WEIGHED | REJECTED)
    ],
}
CASES = [
    (name, mode)
    for name in POLICY_LOSSES.names()
    for mode in (AGGREGATIONS[:1] if name in ("sapo", "geo_mean") else AGGREGATIONS)
]


def agree(ours, theirs, rtol=1e-9):
    torch.testing.assert_close(ours, torch.as_tensor(theirs, dtype=torch.float64), rtol=rtol, atol=1e-12)


def run_ours(name, batch, columns, settings, mode, seed):
    """Loss, gradient and metrics, the selection made on the whole batch."""
    correction = RolloutCorrectionConfig(**settings.get("rollout_correction", {}))
    config = PolicyLossConfig(loss_agg_mode=mode, **settings | {"rollout_correction": correction})
    columns = {key: None if column is None else batch.pack(column) for key, column in columns.items()}
    columns["log_probs"].requires_grad_()

    def inputs():
        counted = Denominators.count(columns["response_mask"], batch.segments, HORIZON)
        return PolicyLossInputs(**columns, segments=batch.segments, denominators=counted)

    selection = select_tokens(name, inputs(), config, torch.Generator().manual_seed(seed))
    columns |= {} if selection is None else selection.columns
    output = compute_policy_loss(name, inputs(), config)
    output.loss.backward()
    return output.loss.detach(), columns["log_probs"].grad, output.metrics, selection


def run_verl(verl, name, columns, settings, mode, seed):
    """Loss, gradient ``[B, R]`` and metrics; settings that verl keeps under ``policy_loss`` go there."""
    of_actor = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg")
    of_loss = {key: value for key, value in settings.items() if key not in of_actor}
    return verl(
        "policy_loss",
        name=name,
        log_prob=columns["log_probs"],
        old_log_prob=columns["old_log_probs"],
        advantages=columns["advantages"],
        response_mask=columns["response_mask"],
        rollout_is_weights=columns["rollout_is_weights"],
        loss_agg_mode=mode,
        seed=seed,
        config={key: value for key, value in settings.items() if key in of_actor} | {"policy_loss": of_loss},
    )


def random_columns(batch, scale, weighted):
    """``[B, R]``; old and new are log-probs, though the old of some tokens is above 0, where no loss may mind."""
    new = -batch.column().abs()
    return {
        "log_probs": new,
        "old_log_probs": new - batch.column(scale),
        "advantages": batch.column(),
        "response_mask": batch.mask,
        "rollout_is_weights": batch.column().exp() if weighted else None,
    }


def variants(name, mode):
    """Settings, scale of the log-ratios and whether there are weights, in all combinations, over and over."""
    scales = (*SCALES, 12.0) if name in BOUNDED else SCALES
    every = itertools.product(SETTINGS.get(name, [NARROW, WIDE]), scales, (False, True))
    return itertools.islice(itertools.cycle(every), 20 * AGGREGATIONS.index(mode), None)


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_policy_loss(verl, batches, name, mode):
    for number, (batch, (settings, scale, weighted)) in enumerate(zip(batches, variants(name, mode), strict=False)):
        columns = random_columns(batch, scale, weighted)
        loss, gradient, metrics, selection = run_ours(name, batch, columns, settings, mode, number)
        theirs = run_verl(verl, name, columns, settings, mode, number)
        agree(loss, theirs[0])
        mask = batch.pack(batch.mask).bool()
        assert not gradient[~mask].any()
        agree(gradient[mask], batch.pack(theirs[1])[mask])
        decided = {} if selection is None else selection.metrics
        assert metrics.keys() | decided.keys() == theirs[2].keys()
        for metric, value in metrics.items():
            agree(value, theirs[2][metric], rtol=1e-6 if "clipfrac" in metric else 1e-9)
