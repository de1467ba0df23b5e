"""What dppo_tv and dppo_kl share: they differ in how they measure that a token's probability has moved too far."""

from __future__ import annotations

import torch
from torch import Tensor

from shared_algos.aggregation import LossOutput
from shared_algos.policy_losses.base import PolicyLossInputs
from shared_algos.policy_losses.config import PolicyLossConfig
from shared_algos.policy_losses.ratios import bounded, policy_gradient


def dppo(inputs: PolicyLossInputs, config: PolicyLossConfig, may_rise: Tensor, may_fall: Tensor) -> LossOutput:
    """Policy gradient of the tokens that may move further, weighted by the ratio truncated at ``clip_ratio_c``.

    may_rise, may_fall: bool ``[T]``, whether a token's probability has room in the direction of its advantage.
    Metrics: ``actor/pg_clipfrac`` (share of tokens that get no gradient), ``actor/pg_clipfrac_lower`` (of tokens whose
    ratio was truncated) and ``actor/ppo_kl`` (mean of old less new log-prob).
    """
    advantages, log_ratio = inputs.at_mask(inputs.advantages), bounded(inputs.log_ratio)
    moves = torch.where(advantages > 0, may_rise, may_fall)
    ratio = log_ratio.exp()
    weight = torch.where(moves, ratio.clamp(max=config.clip_ratio_c), 0)
    metrics = {
        "actor/pg_clipfrac": ~moves,
        "actor/ppo_kl": -log_ratio,
        "actor/pg_clipfrac_lower": moves & (ratio > config.clip_ratio_c),
    }
    token_loss = policy_gradient(advantages, inputs.at_mask(inputs.log_probs), weight)
    return inputs.reduce(token_loss, config.loss_agg_mode, metrics)
