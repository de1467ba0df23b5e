"""The core's built-in estimators and losses as functions with verl's signatures, on padded ``[B, R]``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compat.algorithms.configs import ConfigView, settings_from
from compat.algorithms.mini_batch import active_mini_batch, warn_once
from compat.algorithms.padded import as_packed
from compat.errors import CustomFunctionError
from shared_algos.advantages import AdvantageConfig, AdvantageInputs
from shared_algos.advantages.base import run_estimator
from shared_algos.aggregation import Denominators
from shared_algos.policy_losses import PolicyLossConfig, PolicyLossInputs, check_policy_loss
from shared_algos.registry import Entry, Level

AGGREGATION_OF = {"gspo": "seq-mean-token-mean", "sapo": "seq-mean-token-mean"}
"""verl's default of ``loss_agg_mode`` where it is not token-mean."""

EPSILON = 1e-6
"""What the group estimators add to a standard deviation, in verl by default."""

_SETTINGS = {field.name for field in fields(AdvantageConfig)} - {"source"}
_TOKEN_COLUMNS = ("values", "old_log_probs", "sum_pi_squared", "rollout_is_weights")
_UNREAD = ("num_repeat", "batch", "non_tensor_batch")
"""What verl's functions take and do nothing with, but for gdpo."""


def padded_policy_loss(entry: Entry[Any]) -> Callable[..., tuple[Tensor, dict[str, float]]]:
    """``(old_log_prob, log_prob, ..., rollout_is_weights) -> (loss, metrics)`` of one of the core's losses.

    Inside a loss of a recipe the result is the micro-batch's part of the active mini-batch, and ``config`` defaults to
    the one that is in use. Elsewhere the rows at hand are the mini-batch, as in verl. Metrics are means over the
    tokens at hand.
    """

    def policy_loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str | None = None,
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        mini_batch = active_mini_batch()
        segments, mask = as_packed(response_mask)
        mode = loss_agg_mode or AGGREGATION_OF.get(entry.name, "token-mean")
        settings = _settings(config, mode)
        horizon = _horizon(config, response_mask.shape[1])
        counted = Denominators.count(mask, segments, horizon)
        inputs = PolicyLossInputs(
            log_probs=as_packed(log_prob)[1],
            old_log_probs=as_packed(old_log_prob)[1],
            advantages=as_packed(advantages)[1],
            response_mask=mask,
            segments=segments,
            denominators=counted if mini_batch is None else mini_batch.denominators,
            rollout_is_weights=None if rollout_is_weights is None else as_packed(rollout_is_weights)[1],
        )
        check_policy_loss(entry.name, settings)
        inputs = _with_selection(entry, inputs, settings)
        if mini_batch is None:
            # After the last edit of the mask, which a selection can be.
            counted = Denominators.count(inputs.response_mask, segments, horizon)
            inputs = replace(inputs, denominators=counted)
        output = entry.function(inputs, settings)
        if mini_batch is None:
            return output.loss.to(log_prob.dtype), {name: float(value) for name, value in output.metrics.items()}
        mini_batch.divided = True
        to_mean = mini_batch.tokens / max(float(counted.tokens), 1.0)
        return output.loss, {name: float(value) * to_mean for name, value in output.metrics.items()}

    policy_loss.__name__ = policy_loss.__qualname__ = f"policy_loss_{entry.name}"
    return policy_loss


def padded_estimator(entry: Entry[Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    """``(token_level_rewards, response_mask, index, config, ...) -> (advantages, returns)`` of one of the core's.

    More keywords: columns (``values``, ``reward_baselines``, ...) and settings that go before those of ``config``
    (``gamma``, ``lam``); ``norm_adv_by_std_in_grpo`` is a keyword alone, and true unless given, as in verl. Each row
    counts as a session of its own. Results have the dtype of the rewards, float32 for
    integers. Raises ``TypeError`` for a keyword that no
    estimator of verl has.
    """

    @torch.no_grad()
    def estimator(
        token_level_rewards: Tensor, response_mask: Tensor, index: Any = None, config: Any = None, **more: Any
    ) -> tuple[Tensor, Tensor]:
        _check_keywords(entry.name, more)
        if index is None and entry.level is Level.OUTCOME:
            raise TypeError(f"advantage estimator {entry.name!r} needs index, the uid of each row")
        # In verl the config does not say whether to divide by the std: whoever calls the function does.
        given = {"norm_adv_by_std_in_grpo": True, **{name: more[name] for name in more.keys() & _SETTINGS}}
        settings = settings_from(config, AdvantageConfig(), **given)
        segments, mask = as_packed(response_mask)
        columns: dict[str, Any] = {
            name: as_packed(more[name])[1] for name in _TOKEN_COLUMNS if more.get(name) is not None
        }
        rows = torch.arange(len(response_mask), device=response_mask.device)
        inputs = AdvantageInputs(
            token_level_rewards=as_packed(token_level_rewards)[1],
            response_mask=mask,
            segments=segments,
            groups=rows if index is None else _group_numbers(index).to(rows.device),
            sessions=rows,
            indices=torch.zeros_like(rows),
            reward_baselines=more.get("reward_baselines"),
            reward_components=_components(more.get("non_tensor_batch"), config, rows.device),
            **columns,
        )
        dtype = token_level_rewards.dtype if token_level_rewards.is_floating_point() else torch.float32
        outputs = run_estimator(entry, inputs, settings, dtype)
        return outputs.advantages.view_as(token_level_rewards), outputs.returns.view_as(token_level_rewards)

    estimator.__name__ = estimator.__qualname__ = f"advantage_{entry.name}"
    return estimator


def _settings(config: Any, mode: str) -> PolicyLossConfig:
    """The active settings, or those that another ``config`` asks for, with ``mode``."""
    mini_batch = active_mini_batch()
    base = PolicyLossConfig() if mini_batch is None else mini_batch.config
    if mini_batch is not None and isinstance(config, ConfigView):
        config = None  # a loss hands on the view it was given, which says what the settings say
    return settings_from(config, base, loss_agg_mode=mode)


def _horizon(config: Any, width: int) -> float:
    """verl's divisor of seq-mean-token-sum-norm: the scale factor, or without one the width."""
    return float(ConfigView(config).get("loss_scale_factor") or width)


def _with_selection(entry: Entry[Any], inputs: PolicyLossInputs, settings: PolicyLossConfig) -> PolicyLossInputs:
    """``inputs`` with what the loss decides about the rows at hand, as verl does: of a micro-batch, drawn globally."""
    if entry.select is None:
        return inputs
    mini_batch = active_mini_batch()
    if mini_batch is not None:
        warn_once(mini_batch.function, f"wraps {entry.name!r}, which then looks at each micro-batch by itself")
    with torch.no_grad():
        detached = replace(inputs, log_probs=inputs.log_probs.detach())
        selection = entry.select(detached, settings, torch.default_generator)
    return replace(inputs, **selection.columns)


def _check_keywords(name: str, more: Mapping[str, Any]) -> None:
    known = {*_SETTINGS, *_TOKEN_COLUMNS, *_UNREAD, "reward_baselines", "epsilon"}
    unknown = sorted(more.keys() - known)
    if unknown:
        raise TypeError(f"advantage estimator {name!r} got an unexpected keyword argument {unknown[0]!r}")
    if more.get("epsilon", EPSILON) != EPSILON:
        raise CustomFunctionError(
            f"advantage estimator {name!r} has epsilon {EPSILON}, not {more['epsilon']}; leave it out"
        )


def _group_numbers(index: Any) -> Tensor:
    """A number for each row that rows of one uid share, by first appearance, int64 ``[B]``."""
    numbers: dict[Any, int] = {}
    uids = index.tolist() if isinstance(index, np.ndarray | Tensor) else list(index)
    return torch.tensor([numbers.setdefault(uid, len(numbers)) for uid in uids], dtype=torch.int64)


def _components(non_tensor_batch: Mapping[str, Any] | None, config: Any, device: torch.device) -> Tensor | None:
    """The scores that ``gdpo_reward_keys`` of ``config`` names, ``[B, K]``."""
    keys = ConfigView(config).get("gdpo_reward_keys")
    if not keys or non_tensor_batch is None:
        return None
    columns = [torch.as_tensor(np.asarray(non_tensor_batch[key], dtype=np.float64), device=device) for key in keys]
    return torch.stack(columns, dim=1)
