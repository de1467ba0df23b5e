"""GPG: the plain policy gradient."""

from shared_algos.aggregation import LossOutput
from shared_algos.policy_losses.base import PolicyLossInputs, register_policy_loss
from shared_algos.policy_losses.config import PolicyLossConfig


@register_policy_loss("gpg", reference="GPG arXiv:2504.02546")
def gpg(inputs: PolicyLossInputs, config: PolicyLossConfig) -> LossOutput:
    """Advantage times log-prob, whatever the old policy. Follows verl's ``compute_policy_loss_gpg``; no metrics."""
    token_loss = -inputs.at_mask(inputs.log_probs) * inputs.at_mask(inputs.advantages)
    return inputs.reduce(token_loss, config.loss_agg_mode, {})
