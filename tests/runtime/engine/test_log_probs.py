"""The chunked function equals a plain softmax, forward and backward, and each row stands for itself."""

from __future__ import annotations

import pytest
import torch

from runtime.engine.log_probs import token_log_probs

HIDDEN, VOCAB = 24, 61


def draw(tokens: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    shapes = [(tokens, HIDDEN), (VOCAB, HIDDEN), (VOCAB,)]
    inputs = [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in shapes]
    return [*inputs, torch.randint(VOCAB, (tokens,), generator=generator)]


@pytest.mark.parametrize("tokens", [1, 16, 37])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_equals_a_plain_softmax(tokens: int, temperature: float) -> None:
    hidden, weight, bias, labels = draw(tokens, torch.float64)
    log_probs, entropy, squares = token_log_probs(
        hidden, weight, labels, temperature, bias, chunk_rows=16, with_sum_pi_squared=True
    )
    plain = torch.distributions.Categorical(logits=(hidden @ weight.T + bias) / temperature)
    torch.testing.assert_close(log_probs, plain.log_prob(labels), rtol=0, atol=1e-12)
    torch.testing.assert_close(entropy, plain.entropy(), rtol=0, atol=1e-12)
    torch.testing.assert_close(squares, plain.probs.square().sum(-1), rtol=0, atol=1e-12)
    assert not squares.requires_grad


@pytest.mark.parametrize("with_entropy", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
def test_gradients_are_right(with_entropy: bool, with_bias: bool) -> None:
    hidden, weight, bias, labels = draw(21, torch.float64)
    inputs = (hidden, weight, bias) if with_bias else (hidden, weight)

    def outputs(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> list[torch.Tensor]:
        both = token_log_probs(hidden, weight, labels, 0.7, bias, with_entropy, chunk_rows=16)
        return [output for output in both if output is not None]

    assert torch.autograd.gradcheck(outputs, inputs, fast_mode=True)


@pytest.mark.parametrize("which", [0, 1])
def test_either_output_alone_has_its_gradient(which: int) -> None:
    hidden, weight, bias, labels = draw(21, torch.float64)
    plain = torch.distributions.Categorical(logits=hidden @ weight.T + bias)
    expected = torch.autograd.grad((plain.log_prob(labels), plain.entropy())[which].sum(), [hidden, weight, bias])
    actual = torch.autograd.grad(
        token_log_probs(hidden, weight, labels, 1.0, bias)[which].sum(), [hidden, weight, bias]
    )
    for gradient, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(gradient, right, rtol=0, atol=1e-12)


def test_a_row_has_the_same_bits_whatever_is_computed_with_it() -> None:
    hidden, weight, bias, labels = draw(300)
    with torch.no_grad():
        together = token_log_probs(hidden, weight, labels, 0.7, bias, with_sum_pi_squared=True)
        order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
        for rows in [torch.arange(n) for n in (1, 2, 3, 5, 11, 17, 255, 257)] + [order, order[:7]]:
            some = token_log_probs(hidden[rows], weight, labels[rows], 0.7, bias, with_sum_pi_squared=True)
            for column, whole in zip(some, together, strict=True):
                assert torch.equal(column, whole[rows])


def test_float32_comes_back_for_bfloat16() -> None:
    hidden, weight, _, labels = draw(5, torch.bfloat16)
    log_probs, entropy, _ = token_log_probs(hidden, weight, labels)
    assert log_probs.dtype == entropy.dtype == torch.float32
    (log_probs.sum() + entropy.sum()).backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16


def test_no_tokens_give_empty_columns_and_zero_gradients() -> None:
    hidden, weight, bias, labels = draw(0)
    log_probs, entropy, _ = token_log_probs(hidden, weight, labels, 0.7, bias)
    assert log_probs.shape == entropy.shape == (0,)
    (log_probs.sum() + entropy.sum()).backward()
    assert not weight.grad.any()
    assert not bias.grad.any()


def test_temperature_zero_is_refused() -> None:
    hidden, weight, _, labels = draw(5)
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        token_log_probs(hidden, weight, labels, 0.0)
