"""GSPO: the ratio of whole sequences."""

import torch

from shared_algos.aggregation import LossOutput, row_means
from shared_algos.policy_losses.base import PolicyLossInputs, register_policy_loss
from shared_algos.policy_losses.config import PolicyLossConfig
from shared_algos.policy_losses.ratios import surrogates
from shared_algos.registry import Level


@register_policy_loss("gspo", level=Level.SEQUENCE, reference="GSPO arXiv:2507.18071")
def gspo(inputs: PolicyLossInputs, config: PolicyLossConfig) -> LossOutput:
    """PPO's clipped objective where a row's tokens share the geometric mean of their ratios.

    The gradient is that of the token-level form of the paper: each token passes it on as if the row's ratio were its
    own. Follows verl's ``compute_policy_loss_gspo``: no dual clip, the row's log-ratio at most 10.
    The paper averages by ``seq-mean-token-mean``; here ``loss_agg_mode`` decides, as in verl.
    Metrics: ``actor/pg_clipfrac`` (share of tokens where the clip decided), ``actor/ppo_kl`` (mean of old less new
    log-prob); ``actor/pg_clipfrac_lower`` is 0.
    """
    log_probs = inputs.at_mask(inputs.log_probs)
    of_row = row_means(inputs.log_ratio.detach(), inputs.response_mask, inputs.segments)
    log_ratio = inputs.segments.spread(of_row).to(log_probs.dtype) + (log_probs - log_probs.detach())
    plain, clipped = surrogates(inputs.at_mask(inputs.advantages), log_ratio.clamp(max=10).exp(), config.clip_range)
    metrics = {
        "actor/pg_clipfrac": clipped > plain,
        "actor/ppo_kl": -inputs.log_ratio,
        "actor/pg_clipfrac_lower": torch.zeros_like(plain),
    }
    return inputs.reduce(torch.maximum(plain, clipped), config.loss_agg_mode, metrics)
