"""How far the policy that is trained is from the policy that sampled."""

from __future__ import annotations

import torch
from torch import Tensor

from shared_algos.rollout_correction.pairs import Pairs
from shared_algos.rollout_correction.statistics import exp, extremes, mean, row_means, token_mean
from shared_algos.segments import Segments

PREFIX = "rollout_corr/"


@torch.no_grad()
def off_policy_metrics(
    log_probs: Tensor, rollout_log_probs: Tensor | None, response_mask: Tensor, segments: Segments
) -> dict[str, float]:
    """``rollout_corr/*`` without any correction, as verl's ``compute_offpolicy_metrics``.

    Columns are ``[T]``: log-probs of the policy that is trained, of the policy that sampled (without them only the
    perplexity of the first is known) and the mask. Rows without a mask-1 token weigh nothing; where there are no
    others, there is nothing to measure and the result is empty.
    Raises ``NonFiniteError`` naming the row of a log-prob that is NaN.
    """
    return named(measure(Pairs.of(log_probs, rollout_log_probs, response_mask, segments)))


def named(metrics: dict[str, float]) -> dict[str, float]:
    """Metrics as they are logged."""
    return {PREFIX + name: value for name, value in metrics.items()}


def measure(pairs: Pairs) -> dict[str, float]:
    """Perplexities, KL(rollout || training) by k1 and k3, and chi-squared divergences by token and row."""
    if not pairs.rows.num_rows:
        return {}
    training = -row_means(pairs.training, pairs.rows)
    metrics = {"training_ppl": mean(_exp(training)), "training_log_ppl": mean(training)}
    if pairs.rollout is None:
        return metrics
    rollout = -row_means(pairs.rollout, pairs.rows)
    excess = training - rollout
    log_ratio = pairs.log_ratio
    bounded = log_ratio.clamp(max=20)
    return metrics | {
        "kl": token_mean(-log_ratio, pairs.rows),
        "k3_kl": token_mean(torch.expm1(bounded) - bounded, pairs.rows),
        "rollout_ppl": mean(_exp(rollout)),
        "rollout_log_ppl": mean(rollout),
        "log_ppl_diff": mean(excess),
        "log_ppl_abs_diff": mean(excess.abs()),
        **extremes("log_ppl_diff", excess),
        "ppl_ratio": mean(_exp(excess)),
        "chi2_token": token_mean(exp(log_ratio).square(), pairs.rows) - 1,
        "chi2_seq": mean(exp(pairs.rows.sum(log_ratio)).square()) - 1,
    }


def _exp(exponents: Tensor) -> Tensor:
    """``exp`` of exponents up to 20: a perplexity must stay a number."""
    return exponents.clamp(max=20).exp()
