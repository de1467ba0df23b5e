"""Outcome estimators: one number a session goes in, one advantage a session comes out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shared_algos.advantages.inputs import AdvantageInputs, AdvantageOutputs
from shared_algos.segments import Segments


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The S sessions of a batch that take part, in canonical order: group after group, sessions in order inside.

    A session speaks through its last output that has a mask-1 token. Padding, failures and rejected outputs are gone:
    an estimator needs no mask.
    """

    inputs: AdvantageInputs
    scores: Tensor
    """float64 ``[S]``: the sum of the token rewards of the session's last output, masked tokens included."""
    groups: Segments
    """S sessions in G groups: ``groups.sum(scores)`` is ``[G]``, ``groups.spread`` leads back to ``[S]``."""
    rows: Tensor
    """int64 ``[S]``: the row of each session's last output; ``inputs.reward_baselines[outcomes.rows]`` is ``[S]``."""
    sessions: Segments
    """L live rows in S sessions, in canonical order."""

    @classmethod
    def of(cls, inputs: AdvantageInputs) -> Outcomes:
        """Reduce rows to sessions. Raises ``NonFiniteError`` naming the row of a reward that is infinite or NaN."""
        live = inputs.live_rows
        sessions = _runs(inputs.groups[live], inputs.sessions[live])
        rows = live[sessions.offsets[1:] - 1]
        groups = _runs(inputs.groups[rows])
        scores = inputs.segments.sum(inputs.token_level_rewards)[rows]
        inputs.check_finite("the reward", scores, rows)
        return cls(inputs, scores, groups, rows, sessions)

    @property
    def lengths(self) -> Tensor:
        """Mask-1 tokens of each session's last output, int64 ``[S]``."""
        return self.inputs.generated_lengths[self.rows]

    def spread(self, advantages: Tensor, dtype: torch.dtype = torch.float32) -> AdvantageOutputs:
        """Give ``advantages [S]`` to the mask-1 tokens of every output of each session; returns are the same."""
        inputs = self.inputs
        per_row = torch.zeros(inputs.segments.num_rows, dtype=dtype, device=advantages.device)
        per_row[inputs.live_rows] = self.sessions.spread(advantages.to(dtype))
        tokens = inputs.segments.spread(per_row, inputs.mask)
        return AdvantageOutputs(tokens, tokens)


def _runs(*columns: Tensor) -> Segments:
    """The runs of equal neighbours in ``columns [N]``, compared together; ``unique_consecutive`` loops over them."""
    begins = torch.ones_like(columns[0], dtype=torch.bool)
    begins[1:] = torch.stack([column.diff() != 0 for column in columns]).any(0)
    end = torch.full((1,), len(begins), device=begins.device)
    return Segments(torch.cat([begins.nonzero().squeeze(1), end]))
