"""DPPO with the KL divergence of each token's probability as its trust region."""

from shared_algos.aggregation import LossOutput
from shared_algos.policy_losses.base import PolicyLossInputs, register_policy_loss
from shared_algos.policy_losses.config import PolicyLossConfig
from shared_algos.policy_losses.dppo import dppo


@register_policy_loss("dppo_kl", reference="DPPO-Binary-KL arXiv:2602.04879")
def dppo_kl(inputs: PolicyLossInputs, config: PolicyLossConfig) -> LossOutput:
    """A token stops learning once it moved by a KL above ``clip_ratio_high`` (up) or ``clip_ratio_low`` (down).

    The KL is that of the choice "this token or any other", from old to new. Follows verl's
    ``compute_policy_loss_dppo_kl``, its 1e-8 in the odds of the others included. Weight and metrics: see ``dppo``.
    """
    low, high = config.clip_distances
    log_probs, old_log_probs = inputs.log_probs.detach(), inputs.old_log_probs
    prob, old_prob = log_probs.exp(), old_log_probs.exp()
    others = ((1 - old_prob + 1e-8) / (1 - prob + 1e-8)).log()
    divergence = old_prob * (old_log_probs - log_probs) + (1 - old_prob) * others
    return dppo(
        inputs,
        config,
        may_rise=(divergence <= high) | (prob <= old_prob),
        may_fall=(divergence <= low) | (prob >= old_prob),
    )
