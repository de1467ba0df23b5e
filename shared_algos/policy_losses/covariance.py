"""What clip_cov and kl_cov choose tokens by: the tokens that lower the policy's entropy most."""

from __future__ import annotations

from torch import Tensor

from shared_algos.policy_losses.base import PolicyLossInputs
from shared_algos.reductions import masked_mean


def covariances(inputs: PolicyLossInputs) -> Tensor:
    """Each token's term of the covariance of advantage and log-prob over all rows, float64 ``[T]``; 0 at mask 0."""
    mask, segments = inputs.response_mask, inputs.segments

    def deviations(column: Tensor) -> Tensor:
        return inputs.at_mask(column.double() - masked_mean(column, mask, segments))

    return deviations(inputs.advantages) * deviations(inputs.log_probs)
