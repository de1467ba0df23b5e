import math

import numpy as np
import pytest
import torch

from runtime.errors import ConfigError
from runtime.identity import PromptIdentity
from runtime.rollout.sampler import Sampler, invert, keep_top, uniform
from runtime.rollout.types import SamplingParams

VOCABULARY = 40
CHI_SQUARE_39_999 = 72.05
"""The 0.999 quantile of the chi-square distribution with 39 degrees of freedom."""


def params(**changes) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 8, "seed": 3} | changes))


def logits(rows: int, seed: int = 0, vocabulary: int = VOCABULARY) -> torch.Tensor:
    return 2 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_frequencies_follow_the_softmax_over_positions_and_over_seeds(temperature):
    row, draws = logits(1), 4000
    expected = draws * torch.softmax(row[0].double() / temperature, -1).numpy()
    over_positions = [
        int(Sampler([params(temperature=temperature)])(row, position).tokens) for position in range(draws)
    ]
    many = Sampler([params(temperature=temperature, seed=seed) for seed in range(draws)])
    over_seeds = many(row.expand(draws, -1), 0).tokens.tolist()
    for tokens in (over_positions, over_seeds):
        observed = np.bincount(tokens, minlength=VOCABULARY)
        rare = expected < 5  # too few for the chi-square approximation: pooled into one cell
        seen = np.append(observed[~rare], observed[rare].sum())
        wanted = np.append(expected[~rare], max(expected[rare].sum(), 1e-9))
        assert ((seen - wanted) ** 2 / wanted).sum() < CHI_SQUARE_39_999


def test_a_row_is_the_same_alone_and_in_any_batch_bitwise():
    rows = logits(9, vocabulary=1003)
    settings = [params(seed=seed, temperature=0.3 + seed / 5, top_k=5 * (seed % 3) - 1 or -1) for seed in range(1, 10)]
    settings[4] = params(do_sample=False)
    settings[7] = params(top_p=0.6)
    together = Sampler(settings)(rows, 11)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(5))
    shuffled = Sampler([settings[row] for row in order])(rows[order], 11)
    assert torch.equal(together.tokens[order], shuffled.tokens)
    assert torch.equal(together.log_probs[order], shuffled.log_probs)
    for row in range(9):
        alone = Sampler([settings[row]])(rows[row : row + 1], 11)
        assert torch.equal(together.tokens[row], alone.tokens[0])
        assert torch.equal(together.log_probs[row], alone.log_probs[0])
    kept = Sampler(settings).select([8, 2])(rows[[8, 2]], 11)
    assert torch.equal(kept.tokens, together.tokens[[8, 2]])


def test_log_probs_are_of_the_whole_vocabulary_at_the_temperature():
    rows = logits(3)
    draw = Sampler([params(temperature=0.7, top_k=2), params(temperature=2.0, top_p=0.3), params()])(rows, 0)
    for row, temperature in enumerate([0.7, 2.0, 1.0]):
        expected = torch.log_softmax(rows[row].double() / temperature, -1)[draw.tokens[row]]
        assert float(draw.log_probs[row]) == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("greedy", [{"temperature": 0}, {"do_sample": False, "temperature": 0.2}])
def test_greedy_takes_the_largest_logit_and_its_log_prob_is_of_temperature_1(greedy):
    rows = logits(1)
    draw = Sampler([params(**greedy)])(rows, 0)
    assert int(draw.tokens) == int(rows.argmax())
    assert float(draw.log_probs) == pytest.approx(float(torch.log_softmax(rows[0].double(), -1).max()), abs=1e-6)


def test_top_k_and_top_p_draw_all_of_their_support_and_nothing_else():
    row = torch.log(torch.tensor([[0.05, 0.4, 0.1, 0.3, 0.15]]))
    for cut, support in [
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 1}, {1}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.6}, {1, 3}),
        ({"top_p": 0.8}, {1, 3, 4}),
        ({"top_p": 1e-9}, {1}),
        ({"top_k": 3, "top_p": 0.8}, {1, 3}),  # of the three kept, 0.7 / 0.85 is more than 0.8
    ]:
        sampler = Sampler([params(seed=seed, **cut) for seed in range(300)])
        assert set(sampler(row.expand(300, -1), 0).tokens.tolist()) == support, cut


def test_among_equal_logits_top_k_keeps_the_lower_ids():
    assert keep_top(torch.ones(6, dtype=torch.float64), params(top_k=2)).tolist() == [1, 1, 0, 0, 0, 0]


def test_no_uniform_reaches_a_token_of_probability_zero():
    weights = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0, 0.0]], dtype=torch.float64)
    last = math.nextafter(1.0, 0.0)
    for scale in (1.0, 1 / 3, 7e-300, 1e300):
        cdf = (weights * scale).cumsum(-1)
        for number, token in [(0.0, 1), (0.2999, 1), (0.3001, 3), (last, 3)]:
            assert invert(cdf, torch.tensor([number], dtype=torch.float64)).tolist() == [token]


def test_a_forbidden_token_is_never_drawn():
    row = logits(1)
    row[0, ::2] = -torch.inf
    tokens = Sampler([params(seed=seed) for seed in range(500)])(row.expand(500, -1), 0).tokens
    assert bool((tokens % 2 == 1).all())


def test_a_row_with_nan_is_reported_and_leaves_its_neighbour_alone():
    rows = logits(2)
    clean = Sampler([params(), params(seed=4)])(rows, 0)
    rows[0, 7] = torch.nan
    draw = Sampler([params(), params(seed=4)])(rows, 0)
    assert torch.isnan(draw.log_probs[0])
    assert torch.equal(draw.log_probs[1], clean.log_probs[1])
    assert torch.equal(draw.tokens[1], clean.tokens[1])


def test_768_requests_have_768_seeds_and_streams_for_any_chunking():
    """FACTS.md case 7: 192 distinct seeds let a run collapse after 60 steps, though a short test had passed."""
    requests = [(row, session) for row in range(96) for session in range(8)]

    def seeds(chunks: int) -> list[int]:
        pieces = np.array_split(np.array(requests), chunks)
        return [
            PromptIdentity(42, "train", 1, int(row)).request_seed(int(session))
            for piece in pieces
            for row, session in piece
        ]

    assert len(set(seeds(1))) == 768
    assert seeds(1) == seeds(4) == seeds(7)
    assert len({tuple(uniform(seed, position) for position in range(3)) for seed in seeds(1)}) == 768


def test_uniforms_fill_the_unit_interval_and_positions_do_not_repeat():
    numbers = np.array([uniform(2**63 - 25, position) for position in range(4000)])
    assert len(set(numbers.tolist())) == 4000
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.06


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_tokens", 0), ("temperature", -0.1), ("top_k", -2), ("top_p", 0.0), ("top_p", 1.5), ("seed", -1)],
)
def test_a_parameter_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=f"{name} is {value}"):
        params(**{name: value})
