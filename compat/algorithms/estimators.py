"""Advantage estimators with verl's signature, on ``[B, R]``: registered in the core, and got from it by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from enum import Enum, StrEnum
from functools import update_wrapper
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from compat.algorithms.builtin_estimators import BUILT_IN_ESTIMATORS, padded_estimator
from compat.algorithms.configs import ConfigView, estimator_view
from compat.algorithms.padded import PaddedRows
from compat.algorithms.signatures import Signature, is_running, module_of, qualname_of, same_definition
from compat.errors import CustomFunctionError
from runtime.identity import TrajectoryKey
from shared_algos.advantages import ADVANTAGES, AdvantageConfig, AdvantageInputs, register_advantage
from shared_algos.registry import Level
from shared_algos.segments import Segments

Function = TypeVar("Function", bound=Callable[..., Any])

ALWAYS = ("token_level_rewards", "response_mask", "index", "config")
"""What verl passes to every estimator."""

IF_THERE = ("reward_baselines",)
"""What verl passes to every estimator where the batch has it."""

BY_NAME: Mapping[str, tuple[str, ...]] = {
    "gdpo": ("non_tensor_batch", "batch"),
    **dict.fromkeys(
        ("optimal_token_baseline", "tir_optimal_token_baseline"),
        ("sum_pi_squared", "old_log_probs", "rollout_is_weights"),
    ),
}
"""What verl passes to the estimators of these names only."""

TOKEN_COLUMNS = ("values", "old_log_probs", "sum_pi_squared", "rollout_is_weights")
"""Columns ``[B, R]`` that the batch has where something needs them."""

SETTINGS = ("gamma", "lam", "norm_adv_by_std_in_grpo")
"""Settings of ``algorithm.*``."""

WHEN_REQUIRED = (*TOKEN_COLUMNS, *SETTINGS, *IF_THERE, "non_tensor_batch", "batch")
"""What a function gets beyond verl's arguments if it cannot do without: verl would leave a default as it is."""


class AdvantageEstimator(StrEnum):
    """The names of the built-in estimators, as verl's class of that name."""

    GAE = "gae"
    GRPO = "grpo"
    REINFORCE_PLUS_PLUS = "reinforce_plus_plus"
    REINFORCE_PLUS_PLUS_BASELINE = "reinforce_plus_plus_baseline"
    REMAX = "remax"
    RLOO = "rloo"
    OPO = "opo"
    GRPO_PASSK = "grpo_passk"
    GPG = "gpg"
    RLOO_VECTORIZED = "rloo_vectorized"
    GRPO_VECTORIZED = "grpo_vectorized"
    OPTIMAL_TOKEN_BASELINE = "optimal_token_baseline"
    TIR_OPTIMAL_TOKEN_BASELINE = "tir_optimal_token_baseline"
    GDPO = "gdpo"


def register_adv_est(name_or_enum: str | Enum) -> Callable[[Function], Function]:
    """Register a function with verl's signature under a name, and return the function as it is.

    ``(token_level_rewards [B, R], response_mask [B, R], index [B], config, **more) -> (advantages, returns)``, each
    ``[B, R]``. Arguments are passed by name: those that verl passes (``ALWAYS``, ``IF_THERE``, ``BY_NAME``), and of
    ``WHEN_REQUIRED`` those that have no default. Rows whose mask is all 0 are not shown to the function, the others in
    canonical order; R is the length of the longest.

    A built-in name may be taken over, with a warning. A required parameter that nothing provides is refused when a
    config chooses the estimator. Raises ``DuplicateAlgorithmError`` where another function of a recipe has the name.
    """
    name = name_or_enum.value if isinstance(name_or_enum, Enum) else name_or_enum

    def decorate(function: Function) -> Function:
        estimator = PaddedEstimator(function, name)
        known = ADVANTAGES.get(name).function if name in ADVANTAGES.names() else None
        if isinstance(known, PaddedEstimator) and same_definition(known.function, function):
            return function
        _register(name, estimator, replace=not isinstance(known, PaddedEstimator))
        return function

    return decorate


def _register(name: str, estimator: PaddedEstimator, replace: bool) -> None:
    register_advantage(
        name,
        needs=estimator.needs,
        level=Level.BATCH,
        reference=estimator.signature.function,
        replace=replace,
    )(estimator)


def get_adv_estimator_fn(name_or_enum: str | Enum) -> Callable[..., tuple[Tensor, Tensor]]:
    """The estimator of a name as a function with verl's signature: a recipe's own, or a built-in one on ``[B, R]``.

    A recipe's function that took over a built-in name and asks for it while it runs gets the built-in.

    Raises ``UnknownAlgorithmError`` (a ``ValueError``, as in verl) with the nearest names.
    """
    name = name_or_enum.value if isinstance(name_or_enum, Enum) else name_or_enum
    entry = ADVANTAGES.get(name)
    if not isinstance(entry.function, PaddedEstimator):
        return padded_estimator(entry)
    function = entry.function.function
    if name in BUILT_IN_ESTIMATORS and is_running(function):
        return padded_estimator(BUILT_IN_ESTIMATORS[name])
    return function


class AdvantageRegistry(MutableMapping[str, Callable[..., Any]]):
    """verl's ``ADV_ESTIMATOR_REGISTRY``, a view of the core's: names to functions with verl's signature."""

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name not in ADVANTAGES.names():
            raise KeyError(name)
        return get_adv_estimator_fn(name)

    def __setitem__(self, name: str, function: Callable[..., Any]) -> None:
        """Register ``function``, in place of whatever has the name."""
        name = str(name.value) if isinstance(name, Enum) else name
        _register(name, PaddedEstimator(function, name), replace=True)

    def __delitem__(self, name: str) -> None:
        """Drop a recipe's function; a built-in one that it took over is back."""
        ADVANTAGES.restore(name, BUILT_IN_ESTIMATORS.get(name))

    def __iter__(self) -> Iterator[str]:
        return iter(ADVANTAGES.names())

    def __len__(self) -> int:
        return len(ADVANTAGES.names())


class PaddedEstimator:
    """The core's ``Level.BATCH`` estimator around a function with verl's signature."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        update_wrapper(self, function, updated=())
        self.__module__, self.__qualname__ = module_of(function), qualname_of(function)
        self.function = function
        self.signature = Signature.of(function)
        extra = {*IF_THERE, *BY_NAME.get(name, ())}
        self.passed = {*ALWAYS, *extra, *(set(WHEN_REQUIRED) & set(self.signature.required))}
        columns = {*TOKEN_COLUMNS, *IF_THERE}
        # With what nothing provides: a config that chooses this estimator is refused.
        unprovided = set(self.signature.required) - {*ALWAYS, *WHEN_REQUIRED}
        self.needs = (columns & set(self.signature.required)) | unprovided
        if "non_tensor_batch" in self.passed and self.signature.accepts("non_tensor_batch"):
            self.needs |= {"reward_components"}

    def __call__(self, inputs: AdvantageInputs, config: AdvantageConfig) -> tuple[Tensor, Tensor]:
        """Advantages and returns ``[T]``. Raises ``CustomFunctionError`` for a result that is not two ``[B, R]``."""
        rows = PaddedRows(inputs.live_rows, inputs.segments)
        if not rows.rows.numel():
            nothing = torch.zeros_like(inputs.token_level_rewards)
            return nothing, nothing
        arguments = {
            name: value for name, value in self._arguments(inputs, config, rows).items() if name in self.passed
        }
        returned = self.function(**self.signature.pick(arguments))
        advantages, returns = self._checked(returned, rows)
        return rows.pack(advantages), rows.pack(returns)

    def _arguments(self, inputs: AdvantageInputs, config: AdvantageConfig, rows: PaddedRows) -> dict[str, Any]:
        """Everything that a function can be given; columns that the batch does not have are left out."""
        view = estimator_view(config)
        # Rewards stay where they are, as an outcome may stand on a masked token; no other column is read there.
        inputs.check_finite("the reward", inputs.token_level_rewards[rows.tokens], inputs.segments.rows[rows.tokens])
        columns: dict[str, Any] = {
            "token_level_rewards": rows.pad(inputs.token_level_rewards),
            "response_mask": rows.pad(inputs.mask.long()),
        }
        for name in TOKEN_COLUMNS:
            column = getattr(inputs, name)
            if column is not None:
                columns[name] = rows.pad(torch.where(inputs.mask, column, 0))
        if inputs.reward_baselines is not None:
            columns["reward_baselines"] = inputs.reward_baselines[rows.rows]
        uids = _uids(inputs, rows)
        return {
            **columns,
            **{name: getattr(config, name) for name in SETTINGS},
            "index": uids,
            "config": view,
            "batch": {**columns, **_layout(rows, inputs.segments)},
            "non_tensor_batch": {"uid": uids, **_components(inputs, rows, view)},
        }

    def _checked(self, returned: Any, rows: PaddedRows) -> tuple[Tensor, Tensor]:
        shape = (rows.rows.numel(), rows.width)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            got = f"{len(returned)} values" if isinstance(returned, tuple | list) else type(returned).__name__
            raise CustomFunctionError(
                f"advantage estimator {self.signature.function} returned {got}; expected (advantages, returns)"
            )
        for what, column in zip(("advantages", "returns"), returned, strict=True):
            is_column = isinstance(column, Tensor) and column.is_floating_point() and tuple(column.shape) == shape
            if not is_column:
                got = f"{column.dtype} {tuple(column.shape)}" if isinstance(column, Tensor) else type(column).__name__
                raise CustomFunctionError(
                    f"advantage estimator {self.signature.function} returned {what} that are {got}; "
                    f"expected floating-point numbers of the shape of response_mask, {shape}"
                )
        return returned[0], returned[1]


def _uids(inputs: AdvantageInputs, rows: PaddedRows) -> np.ndarray:
    """What tells groups apart, ``[B']`` objects: the uids where rows have keys, else numbers of groups."""
    numbers = rows.rows.tolist()
    uids = np.empty(len(numbers), dtype=object)
    if inputs.keys is None:
        uids[:] = inputs.groups[rows.rows].tolist()
    else:
        uids[:] = [TrajectoryKey.parse(inputs.keys[row]).uid for row in numbers]
    return uids


def _layout(rows: PaddedRows, segments: Segments) -> dict[str, Tensor]:
    """The columns from which verl's functions tell where a response ends; there are no prompt tokens here."""
    exists = rows.pad(torch.ones(segments.num_tokens, dtype=torch.int64, device=segments.offsets.device))
    return {"prompts": exists.new_zeros(len(exists), 0), "attention_mask": exists}


def _components(inputs: AdvantageInputs, rows: PaddedRows, view: ConfigView) -> dict[str, np.ndarray]:
    """The scores that ``algorithm.gdpo_reward_keys`` names, ``[B']`` each."""
    if inputs.reward_components is None:
        return {}
    scores = inputs.reward_components[rows.rows].cpu().numpy()
    return dict(zip(view.get("gdpo_reward_keys") or (), scores.T, strict=True))
