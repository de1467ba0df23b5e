"""The core's built-in estimators as functions with verl's signatures, on padded ``[B, R]``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compat.algorithms.configs import ConfigView, settings_from
from compat.algorithms.padded import as_packed
from compat.errors import CustomFunctionError
from shared_algos.advantages import ADVANTAGES, AdvantageConfig, AdvantageInputs
from shared_algos.advantages.base import run_estimator
from shared_algos.registry import Entry, Level

BUILT_IN_ESTIMATORS: dict[str, Entry[Any]] = {name: ADVANTAGES.get(name) for name in ADVANTAGES.names()}
"""The core's estimators, whatever a recipe makes of their names later."""

FIXED: Mapping[str, tuple[float, ...]] = {"epsilon": (1e-6, 1e-8), "f_norm": (1.0,), "handle_zero_tail": (True,)}
"""Keywords of verl's functions that have one value here, verl's default (of ``epsilon``: groups, token baselines)."""

_SETTINGS = {field.name for field in fields(AdvantageConfig)} - {"source"}
_TOKEN_COLUMNS = ("values", "old_log_probs", "sum_pi_squared", "rollout_is_weights")
_UNREAD = ("num_repeat", "batch", "non_tensor_batch", "alpha")
"""What verl's functions take and do nothing with, but for gdpo."""


def padded_estimator(entry: Entry[Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    """``(token_level_rewards, response_mask, index, config, ...) -> (advantages, returns)`` of one of the core's.

    More keywords: columns (``values``, ``reward_baselines``, ...) and settings that go before those of ``config``
    (``gamma``, ``lam``); ``norm_adv_by_std_in_grpo`` is a keyword alone, and true unless given, as in verl; grpo_passk
    reads it off ``config``, where there is one. Each row counts as a session of its own. Results have the dtype of the
    rewards, float32 for integers. Raises ``TypeError`` for a keyword that no estimator of verl has.
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
        if entry.name == "grpo_passk" and config is not None:  # but here the config alone does
            given["norm_adv_by_std_in_grpo"] = ConfigView(config).get("norm_adv_by_std_in_grpo", True)
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
            reward_components=_components(entry.name, token_level_rewards, more.get("non_tensor_batch"), config),
            **columns,
        )
        dtype = token_level_rewards.dtype if token_level_rewards.is_floating_point() else torch.float32
        outputs = run_estimator(entry, inputs, settings, dtype)
        return outputs.advantages.view_as(token_level_rewards), outputs.returns.view_as(token_level_rewards)

    estimator.__name__ = estimator.__qualname__ = f"advantage_{entry.name}"
    estimator.core_name = entry.name  # type: ignore[attr-defined]
    return estimator


def _check_keywords(name: str, more: Mapping[str, Any]) -> None:
    known = {*_SETTINGS, *_TOKEN_COLUMNS, *_UNREAD, *FIXED, "reward_baselines"}
    unknown = sorted(more.keys() - known)
    if unknown:
        raise TypeError(f"advantage estimator {name!r} got an unexpected keyword argument {unknown[0]!r}")
    for keyword, values in FIXED.items():
        if keyword in more and more[keyword] not in values:
            raise CustomFunctionError(
                f"advantage estimator {name!r} has {keyword} {values[0]}, not {more[keyword]}; leave it out"
            )


def _group_numbers(index: Any) -> Tensor:
    """A number for each row that rows of one uid share, by first appearance, int64 ``[B]``."""
    numbers: dict[Any, int] = {}
    uids = index.tolist() if isinstance(index, np.ndarray | Tensor) else list(index)
    return torch.tensor([numbers.setdefault(uid, len(numbers)) for uid in uids], dtype=torch.int64)


def _components(name: str, rewards: Tensor, non_tensor_batch: Mapping[str, Any] | None, config: Any) -> Tensor | None:
    """What gdpo weighs, float64 ``[B, K]``: the scores that ``gdpo_reward_keys`` names, or without names the total.

    Raises ``CustomFunctionError`` (an ``AssertionError`` in verl) naming a score that ``non_tensor_batch`` lacks.
    """
    if name != "gdpo":
        return None
    keys = ConfigView(config).get("gdpo_reward_keys")
    if not keys or non_tensor_batch is None:
        return rewards.sum(dim=1, dtype=torch.float64).unsqueeze(1)
    if missing := [key for key in keys if key not in non_tensor_batch]:
        raise CustomFunctionError(
            f"gdpo_reward_keys names {missing[0]!r}, which non_tensor_batch lacks; it has {sorted(non_tensor_batch)}: "
            "let the reward function return it"
        )
    columns = [torch.as_tensor(np.asarray(non_tensor_batch[key], dtype=np.float64)) for key in keys]
    return torch.stack(columns, dim=1).to(rewards.device)
