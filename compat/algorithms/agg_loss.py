"""verl's ``agg_loss``, which inside a loss of a recipe divides by the counts of the whole mini-batch."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from compat.algorithms.counts import GivenCounts
from compat.algorithms.mini_batch import ActiveMiniBatch, active_mini_batch, warn_once
from compat.algorithms.padded import as_packed
from compat.errors import CustomFunctionError
from shared_algos.aggregation import aggregate


def agg_loss(
    loss_mat: Tensor,
    loss_mask: Tensor,
    loss_agg_mode: str,
    dp_size: int = 1,
    batch_num_tokens: float | Tensor | None = None,
    global_batch_size: float | Tensor | None = None,
    loss_scale_factor: float | None = None,
) -> Tensor:
    """Token losses ``[B, R]`` as one scalar, by one of the core's aggregations.

    Inside a registered loss it is the micro-batch's part of the mini-batch, float64: tokens and rows are counted over
    the mini-batch on all ranks, whatever is passed (a contradiction is reported once), the horizon of
    seq-mean-token-sum-norm is ``loss_scale_factor`` or else the configured one, and ``dp_size`` is left to the engine.
    The parts of any split then add up to the same loss and gradient.

    Elsewhere it is verl's function: counts that are not given are those of ``loss_mask``, the horizon is its width,
    and the result has the dtype of ``loss_mat``.

    Raises ``CustomFunctionError`` for shapes that differ or a mask that is not 0 or 1, ``AlgorithmError`` (a
    ``ValueError``, as in verl) for an unknown mode or ``dp_size`` above 1 without counts.
    """
    _check(loss_mat, loss_mask)
    segments, mask = as_packed(loss_mask)
    values = as_packed(loss_mat)[1]
    mini_batch = active_mini_batch()
    if mini_batch is not None:
        mini_batch.divided = True
        _report_contradictions(mini_batch, batch_num_tokens, global_batch_size)
        denominators = replace(mini_batch.denominators, horizon=loss_scale_factor or mini_batch.denominators.horizon)
        return aggregate(values, mask, segments, loss_agg_mode, denominators)
    given = GivenCounts(dp_size, batch_num_tokens, global_batch_size, loss_scale_factor)
    denominators = given.denominators(mask, segments, loss_agg_mode)
    return (aggregate(values, mask, segments, loss_agg_mode, denominators) * dp_size).to(loss_mat.dtype)


def _check(loss_mat: Tensor, loss_mask: Tensor) -> None:
    if loss_mat.dim() != 2 or loss_mat.shape != loss_mask.shape:
        raise CustomFunctionError(
            f"agg_loss got loss_mat {tuple(loss_mat.shape)} and loss_mask {tuple(loss_mask.shape)}; "
            "expected [B, R] for both"
        )
    if loss_mask.is_floating_point() and bool(((loss_mask != 0) & (loss_mask != 1)).any()):
        raise CustomFunctionError("agg_loss got a loss_mask that is neither 0 nor 1; multiply loss_mat by weights")


def _report_contradictions(
    mini_batch: ActiveMiniBatch, tokens: float | Tensor | None, rows: float | Tensor | None
) -> None:
    for name, given, counted in (
        ("batch_num_tokens", tokens, mini_batch.tokens),
        ("global_batch_size", rows, mini_batch.sequences),
    ):
        if given is not None and float(given) != counted:
            warn_once(mini_batch.function, f"passes {name} to agg_loss, which counts over the mini-batch itself")
