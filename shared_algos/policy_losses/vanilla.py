"""PPO's clipped objective with the dual clip."""

import torch

from shared_algos.aggregation import LossOutput
from shared_algos.policy_losses.base import PolicyLossInputs, register_policy_loss
from shared_algos.policy_losses.config import PolicyLossConfig
from shared_algos.policy_losses.ratios import bounded, surrogates


@register_policy_loss("vanilla", reference="PPO arXiv:1707.06347, dual clip arXiv:1912.09729")
def vanilla(inputs: PolicyLossInputs, config: PolicyLossConfig) -> LossOutput:
    """Follows verl's ``compute_policy_loss_vanilla``, the log-ratio clamped to +-20 before ``exp`` included.

    Metrics: ``actor/pg_clipfrac`` and ``actor/pg_clipfrac_lower`` (share of tokens where the clip, or the dual clip,
    decided) and ``actor/ppo_kl`` (mean of old less new log-prob).
    """
    advantages = inputs.at_mask(inputs.advantages)
    log_ratio = bounded(inputs.log_ratio)
    plain, clipped = surrogates(advantages, log_ratio.exp(), config.clip_range)
    pessimistic = torch.maximum(plain, clipped)
    ceiling = -advantages * config.clip_ratio_c
    token_loss = torch.where(advantages < 0, torch.minimum(pessimistic, ceiling), pessimistic)
    metrics = {
        "actor/pg_clipfrac": clipped > plain,
        "actor/ppo_kl": -log_ratio,
        "actor/pg_clipfrac_lower": (pessimistic > ceiling) & (advantages < 0),
    }
    return inputs.reduce(token_loss, config.loss_agg_mode, metrics)
