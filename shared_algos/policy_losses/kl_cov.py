"""KL-Cov: the tokens of highest covariance pay for leaving the old policy, so that the policy's entropy lasts."""

import torch
from torch import Tensor

from shared_algos.aggregation import LossOutput
from shared_algos.policy_losses.base import PolicyLossInputs, Selection, register_policy_loss
from shared_algos.policy_losses.config import PolicyLossConfig
from shared_algos.policy_losses.covariance import covariances
from shared_algos.policy_losses.ratios import bounded


def select(inputs: PolicyLossInputs, config: PolicyLossConfig, _: torch.Generator) -> Selection:
    """The ``kl_cov_ratio`` of the mini-batch's tokens with the highest covariance, at least one; nothing is drawn."""
    mask = inputs.response_mask.bool()
    selected = torch.zeros_like(mask)
    covariance = covariances(inputs)[mask]
    selected[mask] = _largest(covariance, max(1, int(len(covariance) * config.kl_cov_ratio)))
    return Selection(selected=selected)


def _largest(values: Tensor, k: int) -> Tensor:
    """bool ``[N]``, true at the ``k`` largest of ``values [N]`` (at all where there are fewer); ties by position."""
    if len(values) <= k:
        return torch.ones_like(values, dtype=torch.bool)
    threshold = values.topk(k).values[-1]
    above, ties = values > threshold, values == threshold
    return above | (ties & (ties.cumsum(0) <= k - above.sum()))


@register_policy_loss("kl_cov", needs={"selected"}, select=select, reference="KL-Cov arXiv:2505.22617")
def kl_cov(inputs: PolicyLossInputs, config: PolicyLossConfig) -> LossOutput:
    """The unclipped policy gradient; ``ppo_kl_coef`` times the absolute log-ratio is added at the selected tokens.

    Follows verl's ``compute_policy_loss_kl_cov``, which selects inside each micro-batch and has no bound on the
    log-ratio (here +-20 in ``exp``). Metrics: ``actor/ppo_kl`` (mean absolute log-ratio).
    """
    assert inputs.selected is not None
    distance = inputs.log_ratio.abs()
    plain = -inputs.at_mask(inputs.advantages) * bounded(inputs.log_ratio).exp()
    token_loss = plain + torch.where(inputs.selected, config.ppo_kl_coef * distance, 0)
    return inputs.reduce(token_loss, config.loss_agg_mode, {"actor/ppo_kl": distance})
