"""Token-level estimators: each output is an episode whose steps are its mask-1 tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shared_algos.advantages.inputs import AdvantageInputs, AdvantageOutputs
from shared_algos.kept_tokens import KeptTokens
from shared_algos.reductions import all_finite
from shared_algos.segments import Segments


@dataclass(frozen=True, eq=False)
class Episodes:
    """The N mask-1 tokens of the L live rows, packed without the others, rows in canonical order.

    What stands between them (tool observations, rejected tokens) is skipped: an estimator needs no mask, and the token
    after a tool call follows the token before it.
    """

    inputs: AdvantageInputs
    kept: KeptTokens
    rewards: Tensor
    """float64 ``[N]``: token rewards. A reward on a mask-0 token is read at the nearest mask-1 token before it, or at
    the row's first: a trajectory that ends in an observation keeps its outcome."""

    @classmethod
    def of(cls, inputs: AdvantageInputs) -> Episodes:
        """Drop masked tokens. Raises ``NonFiniteError`` naming the row of a reward that is infinite or NaN."""
        kept = KeptTokens.of(inputs.segments, inputs.mask, inputs.live_rows)
        rewards = kept.gather_sums(inputs.token_level_rewards)
        if not all_finite(rewards):
            present = inputs.segments.token_indices(kept.rows)
            inputs.check_finite("the reward", inputs.token_level_rewards[present], inputs.segments.rows[present])
        return cls(inputs, kept, rewards)

    @property
    def segments(self) -> Segments:
        """N tokens in L rows."""
        return self.kept.segments

    @property
    def tokens(self) -> Tensor:
        """int64 ``[N]``: where each token stands in the T tokens of the batch."""
        return self.kept.tokens

    def column(self, name: str) -> Tensor:
        """An input column ``[T]`` at the episodes' tokens, float64 ``[N]``.

        Raises ``NonFiniteError`` naming the row of a value that is infinite or NaN.
        """
        column = self.kept.gather(getattr(self.inputs, name))
        if not all_finite(column):
            self.inputs.check_finite(name, column, self.inputs.segments.rows[self.tokens])
        return column

    def spread(self, advantages: Tensor, returns: Tensor, dtype: torch.dtype = torch.float32) -> AdvantageOutputs:
        """Put columns ``[N]`` back among the T tokens, 0 elsewhere."""
        return AdvantageOutputs(self.kept.scatter(advantages, dtype), self.kept.scatter(returns, dtype))
