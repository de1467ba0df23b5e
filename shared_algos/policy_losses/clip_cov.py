"""Clip-Cov: a few tokens of high covariance get no gradient, so that the policy's entropy lasts."""

import torch

from shared_algos.aggregation import LossOutput
from shared_algos.policy_losses.base import PolicyLossInputs, Selection, register_policy_loss
from shared_algos.policy_losses.config import PolicyLossConfig
from shared_algos.policy_losses.covariance import covariances
from shared_algos.policy_losses.ratios import bounded, surrogates


def select(inputs: PolicyLossInputs, config: PolicyLossConfig, generator: torch.Generator) -> Selection:
    """Draw the tokens that are left out, among those whose covariance lies between the bounds.

    A token that the clip holds already is no candidate. ``clip_cov_ratio`` of the mini-batch's tokens are drawn, at
    least one, or all candidates where there are fewer.
    """
    covariance = covariances(inputs)
    candidates = (config.clip_cov_lb < covariance) & (covariance < config.clip_cov_ub)
    candidates &= inputs.response_mask.bool() & ~_clip_decides(inputs, config)
    places = candidates.nonzero().squeeze(1)
    limit = max(int(config.clip_cov_ratio * int(inputs.response_mask.bool().sum())), 1)
    drawn = torch.randperm(len(places), generator=generator, device=generator.device)[:limit]
    return Selection(selected=torch.zeros_like(candidates).index_fill_(0, places[drawn.to(places.device)], True))


def _clip_decides(inputs: PolicyLossInputs, config: PolicyLossConfig) -> torch.Tensor:
    plain, clipped = surrogates(inputs.at_mask(inputs.advantages), bounded(inputs.log_ratio).exp(), config.clip_range)
    return clipped > plain


@register_policy_loss("clip_cov", needs={"selected"}, select=select, reference="Clip-Cov arXiv:2505.22617")
def clip_cov(inputs: PolicyLossInputs, config: PolicyLossConfig) -> LossOutput:
    """PPO's clipped objective with loss 0 at the selected tokens.

    Follows verl's ``compute_policy_loss_clip_cov``, which draws inside each micro-batch and has no bound on the
    log-ratio (here +-20 in ``exp``). Metrics: ``actor/pg_clipfrac`` (share of selected tokens) and ``actor/ppo_kl``
    (mean of old less new log-prob).
    """
    assert inputs.selected is not None
    plain, clipped = surrogates(inputs.at_mask(inputs.advantages), bounded(inputs.log_ratio).exp(), config.clip_range)
    token_loss = torch.where(inputs.selected, 0, torch.maximum(plain, clipped))
    metrics = {"actor/pg_clipfrac": inputs.selected, "actor/ppo_kl": -inputs.log_ratio}
    return inputs.reduce(token_loss, config.loss_agg_mode, metrics)
