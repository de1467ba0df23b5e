"""The tokens to compare: each has a log-prob of the policy that is trained and one of the policy that sampled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from shared_algos.errors import NonFiniteError
from shared_algos.segments import Segments

_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True, eq=False)
class Pairs:
    """The N mask-1 tokens of the L rows that have one, packed without the rest of the batch."""

    tokens: Tensor
    """int64 ``[N]``: where each token stands in the T tokens of the batch."""
    rows: Segments
    """N tokens in L rows, none of them empty."""
    training: Tensor
    """Log-probs of the policy that is trained, float64 ``[N]``, finite."""
    rollout: Tensor | None
    """Log-probs of the policy that sampled, float64 ``[N]``, finite."""

    @classmethod
    def of(cls, training: Tensor, rollout: Tensor | None, mask: Tensor, segments: Segments) -> Pairs:
        """Drop the mask-0 tokens of columns ``[T]``.

        An infinite log-prob becomes the largest float32 of its sign, so that two of them are equal and every figure
        stays finite. Raises ``NonFiniteError`` naming the row of a log-prob that is NaN.
        """
        segments.check(mask)
        tokens = mask.nonzero().squeeze(1)
        lengths = segments.sum(mask.bool()).long()

        def column(name: str, values: Tensor) -> Tensor:
            segments.check(values)
            kept = values.detach()[tokens].double()
            bad = kept.isnan().nonzero().squeeze(1)
            if bad.numel():
                token = tokens[bad[0]]
                raise NonFiniteError(
                    f"{name} of row {int(segments.rows[token])} is nan at token {int(segments.positions[token])}: it "
                    "must be a number, or the token's response_mask 0"
                )
            return kept.clamp(-_LARGEST, _LARGEST)

        return cls(
            tokens,
            Segments.from_lengths(lengths[lengths > 0]),
            column("the training log-prob", training),
            None if rollout is None else column("the rollout log-prob", rollout),
        )

    @cached_property
    def log_ratio(self) -> Tensor:
        """Training less rollout log-prob, float64 ``[N]``."""
        assert self.rollout is not None
        return self.training - self.rollout
