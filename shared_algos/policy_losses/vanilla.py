"""PPO's clipped objective with the dual clip."""

import torch

from shared_algos.aggregation import LossOutput, aggregate, mean_metric
from shared_algos.policy_losses.base import PolicyLossConfig, PolicyLossInputs, register_policy_loss


@register_policy_loss("vanilla", reference="PPO arXiv:1707.06347, dual clip arXiv:1912.09729")
def vanilla(inputs: PolicyLossInputs, config: PolicyLossConfig) -> LossOutput:
    """Follows verl's ``compute_policy_loss_vanilla``, the log-ratio clamped to +-20 before ``exp`` included.

    Metrics: ``actor/pg_clipfrac`` and ``actor/pg_clipfrac_lower`` (share of tokens where the clip, or the dual clip,
    decided) and ``actor/ppo_kl`` (mean of old less new log-prob).
    """
    advantages = inputs.at_mask(inputs.advantages)
    log_ratio = inputs.at_mask(inputs.log_probs - inputs.old_log_probs).clamp(-20, 20)
    ratio = log_ratio.exp()

    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(*config.clip_range)
    pessimistic = torch.maximum(plain, clipped)
    ceiling = -advantages * config.clip_ratio_c
    token_loss = torch.where(advantages < 0, torch.minimum(pessimistic, ceiling), pessimistic)
    if inputs.rollout_is_weights is not None:
        token_loss = token_loss * inputs.at_mask(inputs.rollout_is_weights.detach())

    mask, segments, denominators = inputs.response_mask, inputs.segments, inputs.denominators
    metrics = {
        "actor/pg_clipfrac": clipped > plain,
        "actor/ppo_kl": -log_ratio,
        "actor/pg_clipfrac_lower": (pessimistic > ceiling) & (advantages < 0),
    }
    return LossOutput(
        aggregate(token_loss, mask, segments, config.loss_agg_mode, denominators),
        {name: mean_metric(values, mask, segments, denominators) for name, values in metrics.items()},
    )
