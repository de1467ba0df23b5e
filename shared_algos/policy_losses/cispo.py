"""CISPO: the policy gradient with a clipped importance weight."""

import torch

from shared_algos.aggregation import LossOutput
from shared_algos.policy_losses.base import PolicyLossInputs, register_policy_loss
from shared_algos.policy_losses.config import PolicyLossConfig
from shared_algos.policy_losses.ratios import bounded, policy_gradient


@register_policy_loss("cispo", reference="CISPO arXiv:2506.13585")
def cispo(inputs: PolicyLossInputs, config: PolicyLossConfig) -> LossOutput:
    """Every token keeps its gradient; its weight is the ratio clipped to the clip range.

    Follows verl's ``compute_policy_loss_cispo``, the log-ratio clamped to +-20 included. Metrics: ``actor/pg_clipfrac``
    (share of tokens whose ratio was clipped), ``actor/ppo_kl`` (mean of old less new log-prob);
    ``actor/pg_clipfrac_lower`` is 0.
    """
    log_ratio = bounded(inputs.log_ratio)
    ratio = log_ratio.exp()
    weight = ratio.clamp(*config.clip_range)
    metrics = {
        "actor/pg_clipfrac": ratio != weight,
        "actor/ppo_kl": -log_ratio,
        "actor/pg_clipfrac_lower": torch.zeros_like(ratio),
    }
    token_loss = policy_gradient(inputs.at_mask(inputs.advantages), inputs.at_mask(inputs.log_probs), weight)
    return inputs.reduce(token_loss, config.loss_agg_mode, metrics)
