"""``verl.trainer.ppo.metric_utils``: the figures of a batch, of its timing and of its gradient's variance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from compat.algorithms.torch_functional import masked_mean, masked_sum
from compat.ppo.columns import column, response_mask, tensors
from compat.protocol import DataProto
from runtime.metrics import BatchFigures, data_metrics

OF_ROWS = {"__num_turns__": "num_turns", "tool_call_counts": "tool_call_counts"}
"""Object columns ``[B]`` of numbers, and the name of their figures."""

WHOLE_SEQUENCES = ("ref", "values", "adv", "update_critic", "update_actor")
"""Stages whose time is spread over prompt and response tokens; that of ``gen`` is over response tokens alone."""


def _compute_response_info(batch: DataProto) -> dict[str, Tensor]:
    """``prompt_length`` and ``response_length`` of each row, float32 ``[B]``, and the mask ``[B, R]`` of the latter.

    A batch that has columns of these names answers with them.
    """
    if "prompt_length" in tensors(batch) and "response_length" in tensors(batch):
        return {name: tensors(batch)[name] for name in ("prompt_length", "response_length")}
    width = column(batch, "responses").shape[1]
    attention_mask = column(batch, "attention_mask")
    of_responses = attention_mask[:, -width:]
    return {
        "response_mask": of_responses,
        "prompt_length": attention_mask[:, :-width].sum(-1).float(),
        "response_length": of_responses.sum(-1).float(),
    }


def compute_data_metrics(batch: DataProto, use_critic: bool = True) -> dict[str, Any]:
    """``critic/*``, ``response_length*/*``, ``prompt_length/*`` and where there are such columns ``num_turns/*``.

    See ``runtime.metrics.data_metrics``; figures of nothing are NaN, as in verl. use_critic: whether ``values`` count.
    """
    kept, lengths = response_mask(batch).bool(), _compute_response_info(batch)
    figures = BatchFigures(
        scores=column(batch, "token_level_scores").sum(-1, dtype=torch.float64),
        rewards=column(batch, "token_level_rewards").sum(-1, dtype=torch.float64),
        advantages=column(batch, "advantages")[kept],
        returns=column(batch, "returns")[kept],
        prompt_lengths=lengths["prompt_length"],
        response_lengths=lengths["response_length"],
        max_response_length=column(batch, "responses").shape[-1],
        max_prompt_length=column(batch, "prompts").shape[-1],
        values=column(batch, "values")[kept] if use_critic else None,
    )
    metrics: dict[str, Any] = data_metrics(figures, of_nothing=math.nan)
    if use_critic:
        metrics.setdefault("critic/vf_explained_var", math.nan)
    for key, name in OF_ROWS.items():
        if key in batch.non_tensor_batch:
            numbers = batch.non_tensor_batch[key]
            metrics |= {f"{name}/min": numbers.min(), f"{name}/max": numbers.max(), f"{name}/mean": numbers.mean()}
    return metrics


def compute_timing_metrics(batch: DataProto, timing_raw: Mapping[str, float]) -> dict[str, float]:
    """``timing_s/STAGE`` of each stage's seconds, and ``timing_per_token_ms/STAGE`` of those that work on tokens."""
    info = _compute_response_info(batch)
    responses = float(info["response_length"].sum(dtype=torch.float64))
    sequences = responses + float(info["prompt_length"].sum(dtype=torch.float64))
    tokens = {"gen": responses, **dict.fromkeys(WHOLE_SEQUENCES, sequences)}
    return {
        **{f"timing_s/{name}": seconds for name, seconds in timing_raw.items()},
        **{
            f"timing_per_token_ms/{name}": timing_raw[name] * 1000 / count if count else 0.0
            for name, count in tokens.items()
            if name in timing_raw
        },
    }


def compute_throughout_metrics(batch: DataProto, timing_raw: Mapping[str, float], n_gpus: int) -> dict[str, float]:
    """``perf/*``: tokens (of ``meta_info["global_token_num"]``), seconds of the step, tokens a second and rank."""
    tokens, seconds = sum(batch.meta_info["global_token_num"]), timing_raw["step"]
    return {
        "perf/total_num_tokens": tokens,
        "perf/time_per_step": seconds,
        "perf/throughput": tokens / (seconds * n_gpus),
    }


def compute_variance_proxy_metrics(batch: DataProto, gradient_norm: float | None = None) -> dict[str, float]:
    """``variance_proxy/*``: how noisy the policy gradient is, from the score norm of each trajectory.

    The score norm is the sum over mask-1 tokens of 1 - 2 pi + sum of pi squared (``sum_pi_squared [B, R]``); the power
    of the gradient is the mean over trajectories of the squared mean advantage times it, with
    ``rollout_is_weights [B, R]`` times the squared mean weight. Empty without ``sum_pi_squared``, ``old_log_probs`` and
    ``advantages``. gradient_norm: of the mean gradient, from which signal and noise are told apart.
    """
    if not {"sum_pi_squared", "old_log_probs", "advantages"} <= set(tensors(batch).keys()):
        return {}
    mask = column(batch, "response_mask")
    score_norms = 1 - 2 * column(batch, "old_log_probs").exp() + column(batch, "sum_pi_squared")
    advantages = masked_mean(column(batch, "advantages"), mask, -1)
    powers, of_rows = advantages.square(), masked_sum(score_norms, mask, -1)
    expected = of_rows
    if "rollout_is_weights" in tensors(batch):
        weights = column(batch, "rollout_is_weights").detach()
        expected = masked_sum(score_norms * weights.square(), mask, -1)
        # A token of weight 0 has no score norm left that could be recovered.
        of_rows = masked_sum(torch.where(weights.square() > 0, score_norms, 0), mask, -1)
        powers = powers * masked_mean(weights, mask, -1).square()
    power = float((powers * of_rows.clamp(min=0)).mean())
    signal = 0.0 if gradient_norm is None else gradient_norm**2
    noise = 0.0
    if gradient_norm is not None and len(batch) > 1:
        noise = max(0.0, (power - signal) / (len(batch) - 1))
    return {
        "variance_proxy/proxy1_signal_strength": signal,
        "variance_proxy/proxy2_total_power": power,
        "variance_proxy/proxy3_pure_noise": noise,
        "variance_proxy/expected_a_squared": float(advantages.square().mean()),
        "variance_proxy/expected_w": float(expected.mean()),
    }
