"""GMPO: the geometric mean of a row's ratios."""

import torch

from shared_algos.aggregation import LossOutput, mean_over_rows, row_means
from shared_algos.policy_losses.base import PolicyLossInputs, register_policy_loss
from shared_algos.policy_losses.config import PolicyLossConfig
from shared_algos.policy_losses.ratios import LOG_RATIO_BOUND
from shared_algos.registry import Level


@register_policy_loss("geo_mean", level=Level.SEQUENCE, reference="GMPO arXiv:2507.20673")
def geo_mean(inputs: PolicyLossInputs, config: PolicyLossConfig) -> LossOutput:
    """A row's mean advantage times the geometric mean of its ratios, each clipped on the side that would be exploited.

    Log-ratios are clipped to -``clip_ratio_low`` and ``clip_ratio_high``. Averaged over the rows that count, whatever
    ``loss_agg_mode`` says. Follows verl's ``compute_policy_loss_geo_mean``; a row's mean log-ratio is held at 20 here,
    where verl has no bound. Weights enter by their geometric mean as well, 1e-10 added to each.
    Metrics: ``actor/pg_clipfrac`` and ``actor/pg_clipfrac_lower`` (share of tokens outside the clip range, of positive
    and of negative advantage) and ``actor/ppo_kl`` (mean of old less new log-prob).
    """
    low, high = config.clip_distances
    advantages, log_ratio = inputs.at_mask(inputs.advantages), inputs.log_ratio
    clipped, sign = log_ratio.clamp(-low, high), advantages.sign()
    pessimistic = sign * torch.minimum(sign * log_ratio, sign * clipped)

    rows = inputs.response_mask, inputs.segments
    row_loss = -row_means(advantages, *rows) * row_means(pessimistic, *rows).clamp(max=LOG_RATIO_BOUND).exp()
    if inputs.rollout_is_weights is not None:
        row_loss = row_loss * row_means((inputs.rollout_is_weights.detach() + 1e-10).log(), *rows).exp()
    outside = log_ratio != clipped
    metrics = {
        "actor/pg_clipfrac": outside & (advantages > 0),
        "actor/ppo_kl": -log_ratio,
        "actor/pg_clipfrac_lower": outside & (advantages < 0),
    }
    return LossOutput(mean_over_rows(row_loss, inputs.denominators), inputs.means(metrics))
