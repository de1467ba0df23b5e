"""verl's functions ``compute_*_advantage``: the core's built-in estimators with the parameters of each verl function.

They take ``token_level_rewards [B, R]``, ``response_mask [B, R]`` (``eos_mask`` up to verl 0.2) and, where rows are
compared, ``index [B]`` (the uid of each row), and give ``(advantages, returns)``, ``[B, R]`` each. They stay the
built-in ones when a recipe takes a name over. ``compat.algorithms.builtin_estimators`` says what else they take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from compat.algorithms.builtin_estimators import BUILT_IN_ESTIMATORS, padded_estimator

Estimator = Callable[..., tuple[Tensor, Tensor]]

OLD_NAMES = {"eos_mask": "response_mask"}
"""Parameters of verl 0.2 and what they became."""

_GROUP = "token_level_rewards response_mask index epsilon"
_TOKEN_BASELINE = "token_level_rewards response_mask index old_log_probs sum_pi_squared rollout_is_weights"


def _function(name: str, parameters: str) -> Estimator:
    """The built-in estimator ``name`` with verl's parameters in verl's order."""
    built_in = padded_estimator(BUILT_IN_ESTIMATORS[name])
    order = parameters.split()

    def compute(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if len(args) > len(order):
            raise TypeError(f"{name} takes {len(order)} arguments by position ({parameters}), got {len(args)}")
        given = dict(zip(order, args, strict=False))
        for keyword, value in kwargs.items():
            parameter = OLD_NAMES.get(keyword, keyword)
            if parameter in given:
                raise TypeError(f"{name} got {parameter!r} twice")
            given[parameter] = value
        if isinstance(given.get("config"), int | float | Tensor):
            given["gamma"] = given.pop("config")  # up to 0.3 the discount stood there
        for setting in given.keys() & {"gamma", "lam"}:
            given[setting] = float(given[setting])
        return built_in(**given)

    compute.__name__ = compute.__qualname__ = f"compute_{name}"
    compute.core_name = name  # type: ignore[attr-defined]
    return compute


compute_gae_advantage_return = _function("gae", "token_level_rewards values response_mask gamma lam")
compute_grpo_outcome_advantage = _function("grpo", f"{_GROUP} norm_adv_by_std_in_grpo config")
compute_grpo_vectorized_outcome_advantage = _function("grpo_vectorized", f"{_GROUP} norm_adv_by_std_in_grpo config")
compute_gdpo_outcome_advantage = _function("gdpo", f"{_GROUP} norm_adv_by_std_in_grpo config non_tensor_batch batch")
compute_grpo_passk_outcome_advantage = _function("grpo_passk", f"{_GROUP} norm_adv_by_std_in_grpo config")
compute_reinforce_plus_plus_baseline_outcome_advantage = _function("reinforce_plus_plus_baseline", f"{_GROUP} config")
compute_rloo_outcome_advantage = _function("rloo", f"{_GROUP} config")
compute_rloo_vectorized_outcome_advantage = _function("rloo_vectorized", f"{_GROUP} config")
compute_opo_outcome_advantage = _function("opo", f"{_GROUP} config")
compute_reinforce_plus_plus_outcome_advantage = _function(
    "reinforce_plus_plus", "token_level_rewards response_mask config"
)
compute_remax_outcome_advantage = _function("remax", "token_level_rewards reward_baselines response_mask config")
compute_gpg_outcome_advantage = _function("gpg", f"{_GROUP} f_norm alpha config")
compute_optimal_token_baseline_advantage = _function(
    "optimal_token_baseline", f"{_TOKEN_BASELINE} handle_zero_tail epsilon"
)
compute_multi_turn_optimal_token_baseline_advantage = _function(
    "tir_optimal_token_baseline", f"{_TOKEN_BASELINE} handle_zero_tail epsilon"
)
