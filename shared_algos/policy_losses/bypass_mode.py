"""Bypass mode: the rollout policy takes the place of the old one, and no old log-probs are computed."""

from dataclasses import replace

import torch

from shared_algos.aggregation import LossOutput
from shared_algos.errors import MissingInputError
from shared_algos.policy_losses.base import PolicyLossInputs, Selection, register_policy_loss
from shared_algos.policy_losses.config import PolicyLossConfig
from shared_algos.policy_losses.vanilla import vanilla
from shared_algos.rollout_correction import correct


def select(inputs: PolicyLossInputs, config: PolicyLossConfig, _: torch.Generator) -> Selection:
    """Weights and rejection of the policy as it is against the rollout policy; nothing is drawn."""
    assert config.rollout_correction is not None
    columns = inputs.log_probs, inputs.old_log_probs, inputs.response_mask
    correction = correct(*columns, inputs.segments, config.rollout_correction)
    return Selection(
        response_mask=correction.response_mask, rollout_is_weights=correction.weights, metrics=correction.metrics
    )


@register_policy_loss(
    "bypass_mode", needs={"rollout_correction"}, select=select, reference="https://richardli.xyz/rl-collapse"
)
def bypass_mode(inputs: PolicyLossInputs, config: PolicyLossConfig) -> LossOutput:
    """``loss_type`` of the rollout correction decides between two losses; ``old_log_probs`` are the rollout's.

    ``ppo_clip``: vanilla, without weights, since its ratio corrects already. ``reinforce``: see there. Follows verl's
    ``compute_policy_loss_bypass_mode``, which weighs and rejects inside each micro-batch.
    """
    correction = config.rollout_correction
    assert correction is not None
    if correction.loss_type == "ppo_clip":
        return vanilla(replace(inputs, rollout_is_weights=None), config)
    if correction.rollout_is is None:
        inputs = replace(inputs, rollout_is_weights=None)
    elif inputs.rollout_is_weights is None:
        raise MissingInputError("policy loss 'bypass_mode' needs the 'rollout_is_weights' that its selection makes")
    return reinforce(inputs, config)


def reinforce(inputs: PolicyLossInputs, config: PolicyLossConfig) -> LossOutput:
    """Advantage times log-prob times the importance weight, as verl's ``compute_policy_loss_reinforce``.

    Metrics: ``actor/ppo_kl`` (mean of rollout less new log-prob).
    """
    token_loss = -inputs.at_mask(inputs.advantages) * inputs.at_mask(inputs.log_probs)
    return inputs.reduce(token_loss, config.loss_agg_mode, {"actor/ppo_kl": -inputs.log_ratio})
