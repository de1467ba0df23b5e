"""verl's ``verl.utils.torch_functional`` as old losses and estimators use it, on padded tensors of any shape.

Sums run in float64 and come back in the dtype of the values, so that they do not depend on the padding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shared_algos.errors import AlgorithmError

Axis = int | tuple[int, ...] | None


def masked_sum(values: Tensor, mask: Tensor, axis: Axis = None) -> Tensor:
    """Sum of ``values`` times ``mask`` (of one shape) over ``axis``, or over everything; no NaN at mask 0 enters."""
    kept = torch.where(mask.bool(), values, 0.0) * mask
    return kept.sum(dim=axis, dtype=torch.float64).to(kept.dtype)


def masked_mean(values: Tensor, mask: Tensor, axis: Axis = None) -> Tensor:
    """``masked_sum`` divided by the sum of ``mask`` + 1e-8, so that it is 0 where nothing counts."""
    return masked_sum(values, mask, axis) / (mask.sum(dim=axis) + 1e-8)


def masked_var(values: Tensor, mask: Tensor, unbiased: bool = True) -> Tensor:
    """Variance over mask-1 elements, with n - 1 where ``unbiased``.

    Raises ``AlgorithmError`` (a ``ValueError``, as in verl) where ``unbiased`` and fewer than two elements count.
    """
    variance = masked_mean((values - masked_mean(values, mask)).square(), mask)
    if not unbiased:
        return variance
    count = mask.sum()
    if count <= 1:
        raise AlgorithmError(f"an unbiased variance needs at least two elements with mask 1, got {int(count)}")
    return variance * (count / (count - 1))


def masked_whiten(values: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
    """``values`` shifted and scaled to mean 0 (kept unless ``shift_mean``) and variance 1 over mask-1 elements."""
    mean, variance = masked_mean(values, mask), masked_var(values, mask)
    whitened = (values - mean) * torch.rsqrt(variance + 1e-8)
    return whitened if shift_mean else whitened + mean


def clip_by_value(x: Tensor, tensor_min: Tensor, tensor_max: Tensor) -> Tensor:
    """``x`` between two tensors; where they cross, the lower one holds."""
    return torch.max(torch.min(x, tensor_max), tensor_min)


def entropy_from_logits(logits: Tensor) -> Tensor:
    """Entropy of softmax(``logits [..., V]``): ``[...]``."""
    return torch.logsumexp(logits, dim=-1) - (logits.softmax(dim=-1) * logits).sum(dim=-1)


def logprobs_from_logits(logits: Tensor, labels: Tensor, inplace_backward: bool = True) -> Tensor:  # noqa: ARG001
    """Log-probs of ``labels [...]`` under softmax(``logits [..., V]``): ``[...]``.

    inplace_backward: verl's choice of a kernel; the result does not depend on it.
    """
    return logits.log_softmax(dim=-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
