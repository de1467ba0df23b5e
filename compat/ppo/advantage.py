"""The advantage stage as verl's ``ray_trainer`` does it on a ``DataProto``, in place."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import torch

from compat.algorithms.configs import ConfigView
from compat.algorithms.estimators import ALWAYS, BY_NAME, IF_THERE, WHEN_REQUIRED, get_adv_estimator_fn
from compat.algorithms.padded import as_packed
from compat.algorithms.signatures import Signature
from compat.errors import MissingColumnError
from compat.ppo.columns import column, compute_response_mask, ensure_response_mask, tensors
from compat.ppo.errors import BadSettingError
from compat.ppo.kl import AdaptiveKLController, FixedKLController
from compat.ppo.resampling import compute_pf_ppo_reweight_data
from compat.protocol import DataProto
from shared_algos import kl

TOKEN_COLUMNS = ("values", "old_log_probs", "sum_pi_squared", "rollout_is_weights")

BUILT_IN_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "gae": ("values", "gamma", "lam"),
    "remax": IF_THERE,
    **BY_NAME,
    **dict.fromkeys(("grpo", "grpo_vectorized", "grpo_passk"), ("norm_adv_by_std_in_grpo",)),
    "gdpo": (*BY_NAME["gdpo"], "norm_adv_by_std_in_grpo"),
}
"""What ``compute_advantage`` hands to the built-in estimators of these names beyond what all of them get.

verl leaves ``norm_adv_by_std_in_grpo`` out for grpo_vectorized and gdpo, and reads it off the config for grpo_passk.
"""


def compute_advantage(
    data: DataProto,
    adv_estimator: str | Enum,
    gamma: float = 1.0,
    lam: float = 1.0,
    num_repeat: int = 1,  # noqa: ARG001
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    multi_turn: bool = False,
) -> DataProto:
    """Set ``advantages`` and ``returns [B, R]`` by the estimator of a name, built-in or a recipe's; returns ``data``.

    A recipe's function is given what verl gives it, and of ``WHEN_REQUIRED`` what it has no default for; unlike in the
    trainers, rows whose mask is all 0 are shown to it, since what it returns must have B rows.
    config: the ``algorithm`` group. With ``use_pf_ppo`` in it, gae is followed by PF-PPO: what is returned is then a
    new batch of rows drawn from ``data``. multi_turn: see ``ensure_response_mask``. num_repeat: a parameter of verl
    that changes nothing.

    Raises ``UnknownAlgorithmError`` (a ``ValueError``) for the name, ``MissingColumnError`` or ``BadSettingError`` for
    what the estimator needs.
    """
    name = str(adv_estimator.value) if isinstance(adv_estimator, Enum) else adv_estimator
    ensure_response_mask(data, multi_turn)
    settings = {"gamma": gamma, "lam": lam, "norm_adv_by_std_in_grpo": norm_adv_by_std_in_grpo}
    function = get_adv_estimator_fn(name)
    is_built_in = hasattr(function, "core_name")
    arguments = (
        _built_in(name, data, settings, config) if is_built_in else _recipes(function, name, data, settings, config)
    )
    tensors(data)["advantages"], tensors(data)["returns"] = function(**arguments)
    view = ConfigView(config)
    if name == "gae" and view.get("use_pf_ppo", False):
        return compute_pf_ppo_reweight_data(data, view.pf_ppo.get("reweight_method"), view.pf_ppo.get("weight_pow"))
    return data


def _built_in(name: str, data: DataProto, settings: dict[str, Any], config: Any) -> dict[str, Any]:
    if name in ("optimal_token_baseline", "tir_optimal_token_baseline") and "sum_pi_squared" not in tensors(data):
        raise BadSettingError(
            f"advantage estimator {name!r} needs the column sum_pi_squared of old_log_prob; set "
            "actor_rollout_ref.actor.calculate_sum_pi_squared=true"
        )
    there = {**_columns(data), **settings, "config": config}
    wanted = ("token_level_rewards", "response_mask", "index", "config", *BUILT_IN_ARGUMENTS.get(name, ()))
    if config is None:
        wanted += ("gamma",)
    for need in ("token_level_rewards", *(("values",) if name == "gae" else ())):
        column(data, need)
    return {key: there[key] for key in wanted if key in there}


def _recipes(
    function: Callable[..., Any], name: str, data: DataProto, settings: dict[str, Any], config: Any
) -> dict[str, Any]:
    signature = Signature.of(function)
    passed = {*ALWAYS, *IF_THERE, *BY_NAME.get(name, ()), *(set(WHEN_REQUIRED) & set(signature.required))}
    there = {**_columns(data), **settings, "config": config}
    arguments = signature.pick({key: value for key, value in there.items() if key in passed})
    if missing := [key for key in signature.required if key not in arguments]:
        raise MissingColumnError(
            f"advantage estimator {signature.function} requires {missing[0]!r}, which the batch does not have; it has "
            f"{sorted({*tensors(data).keys(), *data.non_tensor_batch})}"
        )
    return arguments


def _columns(data: DataProto) -> dict[str, Any]:
    """What estimators read of a batch, by the names of their parameters."""
    columns = {
        name: tensors(data)[name]
        for name in ("token_level_rewards", "response_mask", *TOKEN_COLUMNS, *IF_THERE)
        if name in tensors(data)
    }
    uids = {"index": data.non_tensor_batch["uid"]} if "uid" in data.non_tensor_batch else {}
    return {**columns, **uids, "batch": tensors(data), "non_tensor_batch": data.non_tensor_batch}


def apply_kl_penalty(
    data: DataProto,
    kl_ctrl: AdaptiveKLController | FixedKLController,
    kl_penalty: str = "kl",
    multi_turn: bool = False,
) -> tuple[DataProto, dict[str, float]]:
    """Set ``token_level_rewards`` to the scores less the controller's coefficient times the KL, and let it see the KL.

    Reads ``token_level_scores``, ``old_log_probs``, ``ref_log_prob`` and ``response_mask``, ``[B, R]``; without
    ``ref_log_prob`` the rewards are the scores. The KL that is reported is the mean over rows of each row's mean over
    mask-1 tokens. Metrics: ``actor/reward_kl_penalty`` and ``actor/reward_kl_penalty_coeff``. multi_turn: see
    ``ensure_response_mask``.
    """
    scores, beta = column(data, "token_level_scores"), kl_ctrl.value
    segments, mask = as_packed(ensure_response_mask(data, multi_turn))
    if "ref_log_prob" not in tensors(data):
        tensors(data)["token_level_rewards"] = scores
        return data, {"actor/reward_kl_penalty": 0.0, "actor/reward_kl_penalty_coeff": 0.0}
    old, reference = (as_packed(column(data, name))[1] for name in ("old_log_probs", "ref_log_prob"))
    with torch.no_grad():
        rewards, mean = kl.apply_kl_penalty(as_packed(scores)[1], old, reference, mask, segments, beta, kl_penalty)
    kl_ctrl.update(current_kl=float(mean), n_steps=len(data))
    tensors(data)["token_level_rewards"] = rewards.view_as(scores)
    return data, {"actor/reward_kl_penalty": float(mean), "actor/reward_kl_penalty_coeff": beta}


__all__ = ["apply_kl_penalty", "compute_advantage", "compute_response_mask"]
