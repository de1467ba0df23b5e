"""Token-level estimators: each output is an episode whose steps are its mask-1 tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shared_algos.advantages.inputs import AdvantageInputs, AdvantageOutputs
from shared_algos.segments import Segments


@dataclass(frozen=True, eq=False)
class Episodes:
    """The N mask-1 tokens of the L live rows, packed without the others, rows in canonical order.

    What stands between them (tool observations, rejected tokens) is skipped: an estimator needs no mask, and the token
    after a tool call follows the token before it.
    """

    inputs: AdvantageInputs
    segments: Segments
    """N tokens in L rows."""
    tokens: Tensor
    """int64 ``[N]``: where each token stands in the T tokens of the batch."""
    rewards: Tensor
    """float64 ``[N]``: token rewards, those on mask-0 tokens moved as ``_move_rewards`` says."""

    @classmethod
    def of(cls, inputs: AdvantageInputs) -> Episodes:
        """Drop masked tokens. Raises ``NonFiniteError`` naming the row of a reward that is infinite or NaN."""
        rows = inputs.live_rows
        present = inputs.segments.token_indices(rows)
        generated = inputs.mask[present]
        segments = Segments.from_lengths(inputs.generated_lengths[rows])
        rewards = inputs.token_level_rewards[present]
        inputs.check_finite("the reward", rewards, inputs.segments.rows[present])
        whole_rows = Segments.from_lengths(inputs.segments.lengths[rows])
        return cls(inputs, segments, present[generated], _move_rewards(rewards, generated, whole_rows, segments))

    def column(self, name: str) -> Tensor:
        """An input column ``[T]`` at the episodes' tokens, float64 ``[N]``.

        Raises ``NonFiniteError`` naming the row of a value that is infinite or NaN.
        """
        column = getattr(self.inputs, name)[self.tokens].double()
        self.inputs.check_finite(name, column, self.inputs.segments.rows[self.tokens])
        return column

    def spread(self, advantages: Tensor, returns: Tensor, dtype: torch.dtype = torch.float32) -> AdvantageOutputs:
        """Put columns ``[N]`` back among the T tokens, 0 elsewhere."""
        outputs = torch.zeros(2, self.inputs.segments.num_tokens, dtype=dtype, device=advantages.device)
        outputs[:, self.tokens] = torch.stack([advantages, returns]).to(dtype)
        return AdvantageOutputs(outputs[0], outputs[1])


def _move_rewards(rewards: Tensor, generated: Tensor, rows: Segments, episodes: Segments) -> Tensor:
    """Rewards ``[T']`` of whole rows read at mask-1 tokens, float64 ``[N]``.

    A reward on a mask-0 token goes to the nearest mask-1 token before it, or to the row's first where there is none: a
    trajectory that ends in an observation keeps its outcome, and the sum of a row's rewards never changes.
    """
    nearest = generated.cumsum(0) - 1
    target = torch.maximum(nearest, episodes.offsets[:-1][rows.rows])
    return Segments.from_lengths(target.bincount(minlength=episodes.num_tokens)).sum(rewards)
