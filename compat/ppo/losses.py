"""verl's loss functions on padded ``[B, R]``: the core's, under the names and parameters of ``core_algos``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from compat.algorithms.agg_loss import agg_loss
from compat.algorithms.builtin_losses import BUILT_IN_LOSSES, REINFORCE, padded_policy_loss
from compat.algorithms.counts import GivenCounts
from compat.algorithms.padded import as_packed
from compat.algorithms.torch_functional import entropy_from_logits
from compat.ppo.errors import BadSettingError
from shared_algos import value_loss

_FUNCTIONS = {name: padded_policy_loss(entry) for name, entry in BUILT_IN_LOSSES.items()}

compute_policy_loss_vanilla = _FUNCTIONS["vanilla"]
compute_policy_loss_dppo_tv = _FUNCTIONS["dppo_tv"]
compute_policy_loss_dppo_kl = _FUNCTIONS["dppo_kl"]
compute_policy_loss_gspo = _FUNCTIONS["gspo"]
compute_policy_loss_sapo = _FUNCTIONS["sapo"]
compute_policy_loss_gpg = _FUNCTIONS["gpg"]
compute_policy_loss_clip_cov = _FUNCTIONS["clip_cov"]
compute_policy_loss_kl_cov = _FUNCTIONS["kl_cov"]
compute_policy_loss_geo_mean = _FUNCTIONS["geo_mean"]
compute_policy_loss_dro = _FUNCTIONS["dro"]
compute_policy_loss_cispo = _FUNCTIONS["cispo"]
compute_policy_loss_bypass_mode = _FUNCTIONS["bypass_mode"]
_reinforce = padded_policy_loss(REINFORCE)


def compute_policy_loss_reinforce(
    rollout_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str | None = None,
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The REINFORCE form of bypass mode; ``seq-mean-token-sum`` unless ``loss_agg_mode`` says otherwise."""
    return _reinforce(rollout_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights)


def compute_policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor | None = None,
    cliprange: float | None = None,
    cliprange_low: float | None = None,
    cliprange_high: float | None = None,
    clip_ratio_c: float = 3.0,
    loss_agg_mode: str = "token-mean",
    eos_mask: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """PPO's clipped loss in the form that verl had up to 0.6: loss, clip fraction, KL and lower clip fraction.

    With ``eos_mask`` in place of ``response_mask`` it is the form of 0.2, whose three results have no lower clip
    fraction. Raises ``BadSettingError`` (an ``AssertionError``) where a clip range is missing or ``clip_ratio_c`` is
    not above 1.
    """
    mask = response_mask if eos_mask is None else eos_mask
    if mask is None:
        raise TypeError("compute_policy_loss needs response_mask (eos_mask up to verl 0.2)")
    low = cliprange if cliprange_low is None else cliprange_low
    high = cliprange if cliprange_high is None else cliprange_high
    if low is None or high is None:
        raise BadSettingError("compute_policy_loss needs cliprange, or cliprange_low and cliprange_high")
    if clip_ratio_c <= 1:
        raise BadSettingError(f"clip_ratio_c={clip_ratio_c} must be above 1: it bounds a ratio (dual clip)")
    config = {"clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": clip_ratio_c}
    loss, metrics = compute_policy_loss_vanilla(old_log_prob, log_prob, advantages, mask, loss_agg_mode, config)
    names = ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower")
    figures = tuple(log_prob.new_tensor(metrics[name]) for name in names)
    return (loss, *figures) if eos_mask is None else (loss, *figures[:2])


def compute_entropy_loss(
    logits: Tensor,
    response_mask: Tensor | None = None,
    loss_agg_mode: str = "token-mean",
    eos_mask: Tensor | None = None,
) -> Tensor:
    """The entropy of softmax(``logits [B, R, V]``), aggregated over mask-1 tokens."""
    mask = response_mask if eos_mask is None else eos_mask
    if mask is None:
        raise TypeError("compute_entropy_loss needs response_mask (eos_mask up to verl 0.2)")
    return agg_loss(entropy_from_logits(logits), mask, loss_agg_mode)


def compute_value_loss(
    vpreds: Tensor,
    returns: Tensor,
    values: Tensor,
    response_mask: Tensor | None = None,
    cliprange_value: float = 0.5,
    loss_agg_mode: str = "token-mean",
    dp_size: int = 1,
    batch_num_tokens: float | None = None,
    global_batch_size: float | None = None,
    loss_scale_factor: float | None = None,
    eos_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The critic's clipped loss and the share of tokens at hand where clipping decided.

    Divided as ``agg_loss`` outside of a mini-batch; see there for the counts.
    """
    mask = response_mask if eos_mask is None else eos_mask
    if mask is None:
        raise TypeError("compute_value_loss needs response_mask (eos_mask up to verl 0.2)")
    segments, packed_mask = as_packed(mask)
    given = GivenCounts(dp_size, batch_num_tokens, global_batch_size, loss_scale_factor)
    denominators = given.denominators(packed_mask, segments, loss_agg_mode)
    inputs = value_loss.ValueLossInputs(
        predictions=as_packed(vpreds)[1],
        values=as_packed(values)[1],
        returns=as_packed(returns)[1],
        response_mask=packed_mask,
        segments=segments,
        denominators=denominators,
    )
    output = value_loss.compute_value_loss(inputs, value_loss.ValueLossConfig(cliprange_value, loss_agg_mode))
    to_mean = torch.as_tensor(denominators.tokens) / packed_mask.bool().sum().clamp(min=1)
    clipped = output.metrics["critic/vf_clipfrac"] * to_mean
    return (output.loss * dp_size).to(vpreds.dtype), clipped.to(vpreds.dtype)
