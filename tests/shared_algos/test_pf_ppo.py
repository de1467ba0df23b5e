"""PF-PPO draws whole rows, those with telling rewards more often."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared_algos.errors import AlgorithmError, NonFiniteError
from shared_algos.pf_ppo import METHODS, resample, reweight

methods = pytest.mark.parametrize("method", METHODS)


def draw(scores, method="pow", power=2.0, seed=0, alive=None):
    generator = torch.Generator().manual_seed(seed)
    return resample(torch.tensor(scores, dtype=torch.float64), method, power, generator, alive)


@pytest.mark.parametrize(
    ("method", "power", "expected"),
    [
        ("pow", 2.0, [4.0, 0.0, 9.0, 9.0]),
        ("pow", 0.0, [1.0, 1.0, 1.0, 1.0]),
        ("max_min", 2.0, [0.0, 0.0, 1.0, 1.0]),
        ("max_random", 2.0, [0.1, 0.1, 0.4, 0.1]),
    ],
)
def test_weights(method, power, expected):
    weights = reweight(torch.tensor([-2.0, 0.0, 3.0, -3.0]), method, power)
    assert weights.dtype == torch.float64
    assert weights.tolist() == pytest.approx([weight + 1e-8 for weight in expected], rel=1e-7)


def test_rows_that_take_no_part_have_no_weight_and_no_say():
    alive = torch.tensor([False, True, True, True])
    weights = reweight(torch.tensor([100.0, 1.0, 2.0, 3.0]), "max_min", 2.0, alive)
    assert weights.tolist() == pytest.approx([0, 1, 0, 1], abs=1e-7)


def test_rows_are_drawn_in_proportion_to_their_weights():
    rows = draw([1.0, 2.0] * 10_000)
    assert (rows % 2).double().mean() == pytest.approx(0.8, abs=0.02)


@methods
def test_draws_repeat_with_the_generator(method):
    scores = torch.randn(50, generator=torch.Generator().manual_seed(1)).tolist()
    assert draw(scores, method).equal(draw(scores, method))
    assert not draw(scores, method).equal(draw(scores, method, seed=1))
    assert draw(scores, method).dtype == torch.int64


@methods
@given(scores=st.lists(st.floats(-5, 5), min_size=1, max_size=12), data=st.data())
@settings(deadline=None, max_examples=200)
def test_padding_stays_and_does_not_enter_the_draw(method, scores, data):
    """Rows that take no part put anywhere between the others change nothing but where the others stand."""
    alive = torch.tensor(data.draw(st.permutations([True] * len(scores) + [False] * 3)))
    padded = torch.full(alive.shape, torch.nan, dtype=torch.float64)
    padded[alive] = torch.tensor(scores, dtype=torch.float64)
    rows = resample(padded, method, 2.0, torch.Generator().manual_seed(5), alive)
    places = alive.nonzero().squeeze(1)
    alone = resample(padded[alive], method, 2.0, torch.Generator().manual_seed(5))
    assert rows[alive].equal(places[alone])
    assert rows[~alive].equal((~alive).nonzero().squeeze(1))


@methods
@pytest.mark.parametrize("rows", [0, 3])
def test_nothing_to_draw_from_leaves_rows_where_they_are(method, rows):
    alive = torch.zeros(rows, dtype=torch.bool)
    assert draw([float("nan")] * rows, method, alive=alive).tolist() == list(range(rows))


@methods
def test_one_row_and_equal_rows(method):
    assert draw([0.0], method).tolist() == [0]
    assert set(draw([0.0] * 100, method).tolist()) > {0}


def test_large_scores_do_not_overflow():
    assert draw([1e150, 1e150, 0.0]).max() <= 1


def test_case_5_every_column_of_a_row_moves_together():
    """Four rows of four uids: what is under a key after the draw is what that key's row was before."""
    keys = ["a_0_0", "b_0_0", "c_0_0", "d_0_0"]
    columns = {"returns": torch.arange(4.0), "ids": torch.arange(8).view(4, 2)}
    rows = draw([1.0, 0.0, 3.0, 2.0], seed=2)
    assert len(set(rows.tolist())) < 4
    drawn = {name: column[rows] for name, column in columns.items()}
    for place, row in enumerate(rows.tolist()):
        original = keys.index([keys[row] for row in rows.tolist()][place])
        assert all(drawn[name][place].equal(column[original]) for name, column in columns.items())


def test_an_unknown_method_is_told_with_the_nearest():
    with pytest.raises(AlgorithmError, match="unknown reweight_method 'max_mean'; did you mean 'max_min'"):
        draw([1.0], "max_mean")
    with pytest.raises(AlgorithmError, match="known are pow, max_min, max_random"):
        draw([1.0], None)


@methods
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_not_finite_names_its_row(method, bad):
    with pytest.raises(NonFiniteError, match=f"the score of row 2 is {bad}"):
        draw([1.0, 0.0, bad], method, alive=torch.tensor([True, False, True]))


@pytest.mark.parametrize(("score", "power"), [(0.0, -1.0), (1e30, 11.0)])
def test_a_power_that_is_not_finite_names_its_row(score, power):
    with pytest.raises(NonFiniteError, match=rf"the score to the power of weight_pow {power} of row 1 is .* \(score"):
        draw([float("nan"), score], power=power, alive=torch.tensor([False, True]))
