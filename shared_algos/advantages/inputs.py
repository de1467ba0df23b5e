"""What an advantage estimator is given and what it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from shared_algos.errors import AlgorithmError, NonFiniteError
from shared_algos.reductions import all_finite
from shared_algos.segments import Segments, as_bool


@dataclass(frozen=True)
class AdvantageConfig:
    """Settings of the estimators, with verl's names and defaults (``algorithm.*``)."""

    gamma: float = 1.0
    """Discount a token."""
    lam: float = 1.0
    """GAE's trade of bias against variance."""
    norm_adv_by_std_in_grpo: bool = True
    """Whether GRPO divides by the group's std; off is Dr.GRPO (https://arxiv.org/abs/2503.20783)."""
    gdpo_reward_weights: tuple[float, ...] | None = None
    """GDPO's weight of each reward component; ``None``: 1 each."""
    source: Any = None
    """The ``algorithm`` group of the recipe as it is, handed on to functions with verl's signature."""


@dataclass(frozen=True, eq=False)
class AdvantageInputs:
    """Packed columns of a whole batch; every mini-batch, epoch and rank of it gets the same advantages.

    Columns are ``[T]`` (one value a response token) or ``[B]`` (one a row), float32 or float64.
    Raises ``AlgorithmError`` for a column of another length or number of dimensions.
    """

    token_level_rewards: Tensor
    """``[T]``. Usually 0 but for the last token of a response, where the outcome stands even if its mask is 0."""
    response_mask: Tensor
    """``[T]``, 1 where the model generated the token. A row of zeros (rejected, failed, padding) takes no part."""
    segments: Segments
    """Where each of B rows lies in T."""
    groups: Tensor
    """int64 ``[B]``: rows of one uid share a number, the position of their prompt in its batch."""
    sessions: Tensor
    """int64 ``[B]``: session_id, which of the samples of its prompt a row belongs to."""
    indices: Tensor
    """int64 ``[B]``: the place of this output in its session; the last one speaks for the session."""
    values: Tensor | None = None
    """``[T]``, the critic's values."""
    old_log_probs: Tensor | None = None
    """``[T]``, log-probs of the policy at the start of the step."""
    sum_pi_squared: Tensor | None = None
    """``[T]``, the sum over the vocabulary of squared probabilities."""
    rollout_is_weights: Tensor | None = None
    """``[T]``, importance weights from the rollout policy to the old one."""
    reward_baselines: Tensor | None = None
    """``[B]``, the reward of a greedy response to the same prompt."""
    reward_components: Tensor | None = None
    """``[B, K]``, K of the scores that a reward function returned beside the total."""
    keys: Sequence[str] | None = None
    """``[B]`` trajectory keys, only used to name a row in an error."""

    def __post_init__(self) -> None:
        for name in (
            "token_level_rewards",
            "response_mask",
            "values",
            "old_log_probs",
            "sum_pi_squared",
            "rollout_is_weights",
        ):
            self._check_shape(name, self.segments.num_tokens, "tokens")
        for name in ("groups", "sessions", "indices", "reward_baselines", "reward_components", "keys"):
            self._check_shape(name, self.segments.num_rows, "rows")

    def _check_shape(self, name: str, expected: int, unit: str) -> None:
        column = getattr(self, name)
        if column is None:
            return
        dimensions = 2 if name == "reward_components" else 1
        if isinstance(column, Tensor) and column.dim() != dimensions:
            raise AlgorithmError(f"{name} must have {dimensions} dimension(s), got shape {list(column.shape)}")
        if len(column) != expected:
            raise AlgorithmError(f"{name} has {len(column)} values for {expected} {unit}")

    @cached_property
    def mask(self) -> Tensor:
        """``response_mask`` as bool ``[T]``."""
        return as_bool(self.response_mask)

    @cached_property
    def generated_lengths(self) -> Tensor:
        """Mask-1 tokens of each row, int64 ``[B]``."""
        return self.segments.sum(self.mask).long()

    @cached_property
    def live_rows(self) -> Tensor:
        """The rows that take part, those with a mask-1 token, int64 ``[L]``, in canonical order.

        Canonical order is (group, session, index), so that no sum depends on the order in which rows arrived.
        Raises ``AlgorithmError`` where two of them share all three.
        """
        rows = self.generated_lengths.nonzero().squeeze(1)
        for column in (self.indices, self.sessions, self.groups):
            rows = rows[column[rows].argsort(stable=True)]
        identity = torch.stack([column[rows] for column in (self.groups, self.sessions, self.indices)])
        same = (identity.diff(dim=1) == 0).all(0).nonzero().squeeze(1)
        if same.numel():
            first, second = (self.describe(int(rows[same[0] + i])) for i in (0, 1))
            raise AlgorithmError(f"{first} and {second} have the same group, session and index; they must differ")
        return rows

    def at_rows(self, name: str, rows: Tensor) -> Tensor:
        """An input column ``[B]`` or ``[B, K]`` at ``rows [N]``, float64 ``[N]`` or ``[N, K]``.

        Raises ``NonFiniteError`` naming the row (and which of the K) of a value that is infinite or NaN.
        """
        column = getattr(self, name)[rows].double()
        parts = {name: column} if column.dim() == 1 else {f"{name}[:, {k}]": c for k, c in enumerate(column.unbind(1))}
        for part, values in parts.items():
            self.check_finite(part, values, rows)
        return column

    def describe(self, row: int) -> str:
        """Name a row for an error message."""
        key = f" ({self.keys[row]})" if self.keys is not None else ""
        return f"row {row}{key}"

    def check_finite(self, name: str, column: Tensor, rows: Tensor) -> None:
        """Raise ``NonFiniteError`` naming the row unless all of ``column [N]`` is finite; ``rows [N]`` are its rows."""
        if all_finite(column):
            return
        bad = (~column.isfinite()).nonzero().squeeze(1)
        if bad.numel():
            where = self.describe(int(rows[bad[0]]))
            raise NonFiniteError(
                f"{name} of {where} is {float(column[bad[0]])}: it must be finite, or the row's response_mask all 0"
            )


@dataclass(frozen=True, eq=False)
class AdvantageOutputs:
    """Advantages and returns, ``[T]`` each, float32 unless asked otherwise, 0 at mask-0 positions."""

    advantages: Tensor
    returns: Tensor
