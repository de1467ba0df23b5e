"""The entropy bonus."""

from torch import Tensor

from shared_algos.aggregation import Denominators, aggregate
from shared_algos.segments import Segments


def entropy_loss(entropy: Tensor, mask: Tensor, segments: Segments, denominators: Denominators, mode: str) -> Tensor:
    """The part that the rows at hand add to the entropy of their mini-batch, float64 scalar in nats.

    entropy: ``[T]``, of the policy's distribution at each token; mask: ``[T]``; mode: see ``aggregate``. The actor's
    loss is lessened by it, times a coefficient that is the caller's (verl's ``ppo_loss``).
    """
    return aggregate(entropy, mask, segments, mode, denominators)
