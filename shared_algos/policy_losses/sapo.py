"""SAPO: a smooth gate in the place of the clip."""

import torch

from shared_algos.aggregation import LossOutput
from shared_algos.policy_losses.base import PolicyLossInputs, register_policy_loss
from shared_algos.policy_losses.config import PolicyLossConfig
from shared_algos.policy_losses.ratios import bounded


@register_policy_loss("sapo", reference="SAPO arXiv:2511.20347")
def sapo(inputs: PolicyLossInputs, config: PolicyLossConfig) -> LossOutput:
    """Advantage times sigmoid(tau * (ratio - 1)) * 4 / tau, with ``tau_pos`` or ``tau_neg`` by the advantage's sign.

    Always averaged by ``seq-mean-token-mean``. Follows verl's ``compute_policy_loss_sapo``, the log-ratio clamped to
    +-20 included. Metrics: ``actor/ppo_kl`` (mean of old less new log-prob); both clip shares are 0.
    """
    advantages = inputs.at_mask(inputs.advantages)
    log_ratio = bounded(inputs.log_ratio)
    tau = torch.full_like(advantages, config.tau_neg).masked_fill(advantages > 0, config.tau_pos)
    # The sigmoid by tanh: torch's own depends, in its last bit, on how far a token stands from the end of the column.
    gate = (1 + torch.tanh(tau * (log_ratio.exp() - 1) / 2)) * (2 / tau)
    none = torch.zeros_like(gate)
    metrics = {"actor/pg_clipfrac": none, "actor/ppo_kl": -log_ratio, "actor/pg_clipfrac_lower": none}
    return inputs.reduce(-gate * advantages, "seq-mean-token-mean", metrics)
