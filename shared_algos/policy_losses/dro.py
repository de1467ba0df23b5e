"""DRO: the policy gradient with a quadratic penalty on the log-ratio."""

from shared_algos.aggregation import LossOutput
from shared_algos.policy_losses.base import PolicyLossInputs, register_policy_loss
from shared_algos.policy_losses.config import PolicyLossConfig


@register_policy_loss("dro", needs={"dro_beta"}, reference="DRO arXiv:2405.19107")
def dro(inputs: PolicyLossInputs, config: PolicyLossConfig) -> LossOutput:
    """Advantage times log-prob, less half ``dro_beta`` times the squared log-ratio.

    Follows verl's ``compute_policy_loss_dro``. Metrics: ``actor/ppo_kl`` (mean of old less new log-prob).
    """
    assert config.dro_beta is not None
    log_ratio = inputs.log_ratio
    gain = inputs.at_mask(inputs.log_probs) * inputs.at_mask(inputs.advantages)
    token_loss = 0.5 * config.dro_beta * log_ratio.square() - gain
    return inputs.reduce(token_loss, config.loss_agg_mode, {"actor/ppo_kl": -log_ratio})
