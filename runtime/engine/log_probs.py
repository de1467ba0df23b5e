"""Log-probabilities and entropies straight from hidden states, a few rows at a time.

The logits of T tokens over a vocabulary of V are by far the largest tensor of RL training. Here they exist for
``chunk_rows`` tokens at once; the backward pass computes them again from the hidden states and the saved log-sum-exp.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK_ROWS = 256

# Matmul kernels choose their inner loop by the row count, so a row's bits change below 12 rows (MKL, two threads).
# Filling up to a multiple of 16 makes every row's result independent of how many others are computed with it.
ROW_MULTIPLE = 16


class TokenScores(NamedTuple):
    """Of each token's distribution over the full vocabulary, float32 (float64 for float64 inputs)."""

    log_probs: Tensor
    """``[T]``, of the label."""
    entropy: Tensor | None
    """``[T]``, in nats, where it was asked for."""
    sum_pi_squared: Tensor | None
    """``[T]``, the sum of squared probabilities, where it was asked for; without gradient."""


def token_log_probs(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    temperature: float = 1.0,
    bias: Tensor | None = None,
    with_entropy: bool = True,
    chunk_rows: int = CHUNK_ROWS,
    with_sum_pi_squared: bool = False,
) -> TokenScores:
    """What each label's distribution ``softmax(hidden @ weight.T / temperature)`` says about it.

    hidden: ``[T, H]``. weight: ``[V, H]``. labels: int64 ``[T]``. bias: ``[V]``. Log-probs and entropy are
    differentiable with respect to hidden, weight and bias.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}; greedy decoding is scored at 1")
    log_probs, entropy, squares = _TokenLogProbs.apply(
        hidden, weight, bias, labels, temperature, with_entropy, with_sum_pi_squared, chunk_rows
    )
    return TokenScores(log_probs, entropy if with_entropy else None, squares if with_sum_pi_squared else None)


def fill_rows(rows: Tensor) -> Tensor:
    """``rows [n, ...]`` with zero rows appended up to a multiple of ``ROW_MULTIPLE``."""
    missing = -rows.shape[0] % ROW_MULTIPLE
    return pad(rows, [0, 0] * (rows.dim() - 1) + [0, missing]) if missing else rows


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        temperature: float,
        with_entropy: bool,
        with_sum_pi_squared: bool,
        chunk_rows: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        log_probs, log_sum_exp = (hidden.new_empty(hidden.shape[0], dtype=dtype) for _ in range(2))
        entropy = hidden.new_empty(hidden.shape[0] if with_entropy else 0, dtype=dtype)
        squares = hidden.new_empty(hidden.shape[0] if with_sum_pi_squared else 0, dtype=dtype)
        for start in range(0, hidden.shape[0], chunk_rows):
            chunk = slice(start, start + chunk_rows)
            logits = _logits(hidden[chunk], weight, bias, temperature, dtype)
            normaliser = logits.logsumexp(-1)
            rows = labels[chunk].shape[0]
            log_sum_exp[chunk] = normaliser[:rows]
            log_probs[chunk] = logits[:rows].gather(1, labels[chunk, None]).squeeze(1) - normaliser[:rows]
            if with_entropy or with_sum_pi_squared:
                probabilities = (logits - normaliser[:, None]).exp_()
            if with_sum_pi_squared:
                squares[chunk] = probabilities.square().sum(-1)[:rows]
            if with_entropy:
                entropy[chunk] = (normaliser - probabilities.mul_(logits).sum(-1))[:rows]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(squares)
        ctx.save_for_backward(hidden, weight, bias, labels, log_sum_exp, entropy)
        ctx.temperature, ctx.chunk_rows = temperature, chunk_rows
        return log_probs, entropy, squares

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels, log_sum_exp, entropy = ctx.saved_tensors
        grad_log_probs = torch.zeros_like(log_sum_exp) if grads[0] is None else grads[0]
        # Without entropy its gradient has no rows, and is no gradient either.
        grad_entropy = grads[1] if grads[1] is not None and entropy.numel() else None
        grad_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        for start in range(0, hidden.shape[0], ctx.chunk_rows):
            chunk = slice(start, start + ctx.chunk_rows)
            logits = _logits(hidden[chunk], weight, bias, ctx.temperature, log_sum_exp.dtype)
            log_p = logits.sub_(fill_rows(log_sum_exp[chunk])[:, None])
            factor = fill_rows(grad_log_probs[chunk])[:, None]
            if grad_entropy is not None:
                factor = factor + (log_p + fill_rows(entropy[chunk])[:, None]) * fill_rows(grad_entropy[chunk])[:, None]
            grad_logits = _grad_logits(log_p, factor, labels[chunk], grad_log_probs[chunk])
            grad_logits = grad_logits.div_(ctx.temperature).to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[chunk] = (grad_logits @ weight)[: labels[chunk].shape[0]]
            if grad_weight is not None:
                grad_weight.addmm_(grad_logits.T, fill_rows(hidden[chunk]))
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, dtype: torch.dtype) -> Tensor:
    logits = fill_rows(hidden) @ weight.T
    if bias is not None:
        logits += bias
    return logits.to(dtype).div_(temperature)


def _grad_logits(log_p: Tensor, factor: Tensor, labels: Tensor, grad_log_probs: Tensor) -> Tensor:
    """Gradient with respect to the scaled logits z, in place of ``log_p [n + fill, V]``; rows beyond n get 0.

    With p the softmax and E its entropy: d log p_y / d z_j = [j = y] - p_j and d E / d z_j = -p_j (log p_j + E), so the
    gradient is [j = y] g - p_j factor, with factor = g + (log p_j + E) g_entropy ``[n + fill, 1]`` or ``[.., V]``.
    """
    grad = log_p.exp_().mul_(factor).neg_()
    grad[: labels.shape[0]].scatter_add_(1, labels[:, None], grad_log_probs[:, None])
    return grad
