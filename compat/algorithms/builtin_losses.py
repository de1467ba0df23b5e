"""The core's built-in policy losses as functions with verl's signature, on padded ``[B, R]``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from compat.algorithms.configs import ConfigView, settings_from
from compat.algorithms.counts import GivenCounts
from compat.algorithms.mini_batch import active_mini_batch, warn_once
from compat.algorithms.padded import as_packed
from shared_algos.aggregation import Denominators, LossOutput
from shared_algos.policy_losses import (
    POLICY_LOSSES,
    PolicyLossConfig,
    PolicyLossInputs,
    Selection,
    check_policy_loss,
)
from shared_algos.policy_losses.bypass_mode import reinforce
from shared_algos.registry import Entry, Level
from shared_algos.segments import Segments

AGGREGATION_OF = {
    "gspo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "reinforce": "seq-mean-token-sum",
}
"""verl's default of ``loss_agg_mode`` where it is not token-mean."""

COUNTS_ROWS_AT_HAND = {"geo_mean"}
"""Losses that do not look at ``config.global_batch_info``, as in verl."""

BUILT_IN_LOSSES: dict[str, Entry[Any]] = {name: POLICY_LOSSES.get(name) for name in POLICY_LOSSES.names()}
"""The core's losses, whatever a recipe makes of their names later."""

REINFORCE: Entry[Any] = Entry("reinforce", reinforce, frozenset(), Level.TOKEN, "")
"""The second loss of bypass mode, which has no name in the registry; verl has it as a function."""


def padded_policy_loss(entry: Entry[Any]) -> Callable[..., tuple[Tensor, dict[str, float]]]:
    """``(old_log_prob, log_prob, ..., rollout_is_weights) -> (loss, metrics)`` of one of the core's losses.

    Inside a loss of a recipe the result is the micro-batch's part of the active mini-batch, and ``config`` defaults to
    the one that is in use. Elsewhere the rows at hand are the mini-batch, or what ``config.global_batch_info`` says of
    it, as in verl. Metrics are means over the tokens at hand.
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
        segments, mask = as_packed(response_mask)
        mode = loss_agg_mode or AGGREGATION_OF.get(entry.name, "token-mean")
        settings, given = _settings(config, mode), _given(entry.name, config)
        if entry.name in BUILT_IN_LOSSES:
            check_policy_loss(entry.name, settings)
        inputs = PolicyLossInputs(
            log_probs=as_packed(log_prob)[1],
            old_log_probs=as_packed(old_log_prob)[1],
            advantages=as_packed(advantages)[1],
            response_mask=mask,
            segments=segments,
            denominators=_denominators(given, mask, segments, mode),
            rollout_is_weights=None if rollout_is_weights is None else as_packed(rollout_is_weights)[1],
        )
        selection = _selection(entry, inputs, settings)
        decided: dict[str, Any] = {**selection.columns}
        inputs = replace(inputs, **decided)
        # Counted after the last edit of the mask, which a selection can be.
        denominators = _denominators(given, inputs.response_mask, segments, mode)
        output = entry.function(replace(inputs, denominators=denominators), settings)
        tokens = inputs.response_mask.bool().sum()
        metrics = {**_means(output, denominators, int(tokens)), **selection.metrics}
        mini_batch = active_mini_batch()
        if mini_batch is None:
            return (output.loss * given.dp_size).to(log_prob.dtype), metrics
        mini_batch.divided = True
        return output.loss, metrics

    policy_loss.__name__ = policy_loss.__qualname__ = f"policy_loss_{entry.name}"
    policy_loss.core_name = entry.name  # type: ignore[attr-defined]
    return policy_loss


def _settings(config: Any, mode: str) -> PolicyLossConfig:
    """The active settings, or those that another ``config`` asks for, with ``mode``."""
    mini_batch = active_mini_batch()
    base = PolicyLossConfig() if mini_batch is None else mini_batch.config
    if mini_batch is not None and isinstance(config, ConfigView):
        config = None  # a loss hands on the view it was given, which says what the settings say
    return settings_from(config, base, loss_agg_mode=mode)


def _given(name: str, config: Any) -> GivenCounts:
    """What ``config`` says of the mini-batch that the rows at hand are a part of."""
    if active_mini_batch() is not None:
        return GivenCounts()  # which knows better
    view = ConfigView(config)
    info = {} if name in COUNTS_ROWS_AT_HAND else (view.get("global_batch_info") or {})
    return GivenCounts.of({"loss_scale_factor": view.get("loss_scale_factor"), **info})


def _denominators(given: GivenCounts, mask: Tensor, segments: Segments, mode: str) -> Denominators:
    mini_batch = active_mini_batch()
    return given.denominators(mask, segments, mode) if mini_batch is None else mini_batch.denominators


def _means(output: LossOutput, denominators: Denominators, tokens: int) -> dict[str, float]:
    """The loss's metrics, which are parts of means over the mini-batch, as means over the tokens at hand."""
    to_mean = max(float(denominators.tokens), 1.0) / max(tokens, 1)
    return {name: float(value) * to_mean for name, value in output.metrics.items()}


def _selection(entry: Entry[Any], inputs: PolicyLossInputs, settings: PolicyLossConfig) -> Selection:
    """What the loss decides about a whole mini-batch.

    Inside a loss of a recipe that was done when the mini-batch was whole; elsewhere the rows at hand are the
    mini-batch, and draws come from torch's global generator, as in verl.
    """
    if entry.select is None:
        return Selection()
    mini_batch = active_mini_batch()
    generator = torch.default_generator
    if mini_batch is not None:
        if mini_batch.selection is not None:
            return mini_batch.selection
        if mini_batch.generator is None:
            warn_once(mini_batch.function, f"wraps {entry.name!r}, which then looks at each micro-batch by itself")
        else:
            generator = mini_batch.generator
    with torch.no_grad():
        detached = replace(inputs, log_probs=inputs.log_probs.detach())
        selection: Selection = entry.select(detached, settings, generator)
    if mini_batch is not None:
        mini_batch.selected = selection
    return selection
