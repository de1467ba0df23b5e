"""Estimators and losses as recipes of several versions of verl define them; the file runs in verl and here.

It is imported for what it registers: by the tests of this folder, by the process of the oracle, and by Ray workers.
"""

from collections import defaultdict

import numpy as np
import torch

try:
    import verl.utils.torch_functional as verl_F
    from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, register_adv_est, register_policy_loss
except ImportError:
    from compat.algorithms import agg_loss, get_policy_loss_fn, register_adv_est, register_policy_loss
    from compat.algorithms import torch_functional as verl_F


# Estimators.


@register_adv_est("recipe_grpo")
def recipe_grpo(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    epsilon: float = 1e-6,
    config=None,
    **kwargs,  # noqa: ARG001
):
    """Scores normalised in their group, row by row; a group of one keeps its score."""
    scores = token_level_rewards.sum(dim=-1)
    by_std = config.get("norm_adv_by_std_in_grpo", True) if config else True
    members = defaultdict(list)
    for row, uid in enumerate(index):
        members[uid].append(row)
    normalised = torch.zeros_like(scores)
    for rows in members.values():
        group = scores[rows]
        mean, std = (group.mean(), group.std()) if len(rows) > 1 else (0.0, 1.0)
        normalised[rows] = (group - mean) / (std + epsilon) if by_std else group - mean
    advantages = normalised.unsqueeze(-1) * response_mask
    return advantages, advantages


@register_adv_est("recipe_reinforce")
def recipe_reinforce(token_level_rewards, response_mask, config=None, **kwargs):  # noqa: ARG001
    """Discounted returns that skip masked tokens, whitened over the batch."""
    running, columns = 0, []
    for t in reversed(range(token_level_rewards.shape[1])):
        running = (token_level_rewards[:, t] + config.gamma * running) * response_mask[:, t] + running * (
            1 - response_mask[:, t]
        )
        columns.append(running)
    returns = torch.stack(columns[::-1], dim=1)
    return verl_F.masked_whiten(returns, response_mask.to(returns.dtype)) * response_mask, returns


@register_adv_est("recipe_gae")
def recipe_gae(token_level_rewards, values, response_mask, gamma, lam):
    """GAE over the tokens of the model, which verl's trainer could not call: it passes no values."""
    mask = response_mask.to(values.dtype)
    following, running, columns = 0, 0, []
    for t in reversed(range(values.shape[1])):
        delta = token_level_rewards[:, t] + gamma * following - values[:, t]
        running = mask[:, t] * (delta + gamma * lam * running) + (1 - mask[:, t]) * running
        following = mask[:, t] * values[:, t] + (1 - mask[:, t]) * following
        columns.append(running)
    advantages = torch.stack(columns[::-1], dim=1)
    return verl_F.masked_whiten(advantages, mask), advantages + values


# Losses.


@register_policy_loss("recipe_ppo")
def recipe_ppo(
    old_log_prob,
    log_prob,
    advantages,
    response_mask,
    loss_agg_mode="token-mean",
    config=None,
    rollout_is_weights=None,
):
    """0.9: weights, global counts, a dict of metrics."""
    log_ratio = torch.clamp(log_prob - old_log_prob, min=-20.0, max=20.0)
    low = config.clip_ratio_low if config.clip_ratio_low is not None else config.clip_ratio
    high = config.clip_ratio_high if config.clip_ratio_high is not None else config.clip_ratio
    plain = -advantages * log_ratio.exp()
    clipped = -advantages * torch.clamp(log_ratio.exp(), 1 - low, 1 + high)
    pessimistic = torch.maximum(plain, clipped)
    bounded = torch.min(-advantages * config.get("clip_ratio_c", 3.0), pessimistic)
    losses = torch.where(advantages < 0, bounded, pessimistic)
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    loss = agg_loss(loss_mat=losses, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info)
    metrics = {
        "actor/pg_clipfrac": verl_F.masked_mean(torch.gt(clipped, plain).float(), response_mask).detach().item(),
        "actor/ppo_kl": verl_F.masked_mean(-log_ratio, response_mask).detach(),
    }
    return loss, metrics


@register_policy_loss("recipe_dapo")
def recipe_dapo(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):
    """0.5: clip-higher and dual clip, no weights, four values; ``1 - mask`` says that the mask is not bool."""
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    plain = -advantages * ratio
    clipped = -advantages * torch.clamp(ratio, 1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    pessimistic = torch.maximum(plain, clipped)
    ceiling = -advantages * config.clip_ratio_c
    losses = torch.where(advantages < 0, torch.min(ceiling, pessimistic), pessimistic)
    losses = losses * (1 - (1 - response_mask))
    loss = agg_loss(loss_mat=losses, loss_mask=response_mask, loss_agg_mode=loss_agg_mode)
    clip_fraction = verl_F.masked_mean(torch.gt(clipped, plain).float(), response_mask)
    lower = verl_F.masked_mean(torch.gt(pessimistic, ceiling) * (advantages < 0).float(), response_mask)
    return loss, clip_fraction, verl_F.masked_mean(-log_ratio, response_mask), lower


@register_policy_loss("recipe_token_mean")
def recipe_token_mean(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):  # noqa: ARG001
    """A mean over the tokens at hand, without ``agg_loss``."""
    return verl_F.masked_mean(-advantages * log_prob, response_mask), {}


@register_policy_loss("recipe_by_hand")
def recipe_by_hand(old_log_prob, log_prob, advantages, response_mask, config, **kwargs):  # noqa: ARG001
    """Divides by the counts of the whole mini-batch itself."""
    ratio = (log_prob - old_log_prob).exp()
    info = config.global_batch_info
    loss = verl_F.masked_sum(-advantages * ratio, response_mask) / info["batch_num_tokens"] * info["dp_size"]
    return loss, {"recipe/ratio": verl_F.masked_mean(ratio, response_mask).item()}


@register_policy_loss("recipe_by_position")
def recipe_by_position(old, new, adv, mask, mode, settings):
    """0.5 passed six arguments by position."""
    assert settings.policy_loss.loss_mode
    return agg_loss(-adv * (new - old).exp(), mask, mode), {}


@register_policy_loss("recipe_wrapping")
def recipe_wrapping(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights=None):
    """A built-in loss and a term more."""
    loss, metrics = get_policy_loss_fn("vanilla")(
        old_log_prob=old_log_prob,
        log_prob=log_prob,
        advantages=advantages,
        response_mask=response_mask,
        loss_agg_mode=loss_agg_mode,
        config=config,
        rollout_is_weights=rollout_is_weights,
    )
    penalty = (log_prob - old_log_prob).square()
    more = agg_loss(loss_mat=penalty, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info)
    return loss + config.policy_loss.get("penalty", 0.0) * more, metrics
