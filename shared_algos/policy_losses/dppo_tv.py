"""DPPO with the total variation of each token's probability as its trust region."""

from shared_algos.aggregation import LossOutput
from shared_algos.policy_losses.base import PolicyLossInputs, register_policy_loss
from shared_algos.policy_losses.config import PolicyLossConfig
from shared_algos.policy_losses.dppo import dppo


@register_policy_loss("dppo_tv", reference="DPPO-Binary-TV arXiv:2602.04879")
def dppo_tv(inputs: PolicyLossInputs, config: PolicyLossConfig) -> LossOutput:
    """A token stops learning once its probability moved by more than ``clip_ratio_high`` up or ``clip_ratio_low`` down.

    Follows verl's ``compute_policy_loss_dppo_tv``. Weight and metrics: see ``dppo``.
    """
    low, high = config.clip_distances
    moved = inputs.log_probs.detach().exp() - inputs.old_log_probs.exp()
    return dppo(inputs, config, may_rise=moved <= high, may_fall=moved >= -low)
