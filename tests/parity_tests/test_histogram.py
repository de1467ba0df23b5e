import math

import pytest
import torch

from parity_tests.difference import difference
from parity_tests.histogram import HIGHEST, LOWEST, histogram


def filled(found):
    return {number: found.count(number) for number in found.bins if found.count(number)}


@pytest.mark.parametrize(
    ("gap", "number"),
    [(1.0, 0), (3.2, 1), (0.99, -1), (1e-7, -14), (2.9e-7, -14), (3.3e-7, -13), (1e-30, LOWEST), (1e30, HIGHEST)],
)
def test_a_bin_is_half_a_decade_and_the_outer_ones_hold_the_rest(gap, number):
    assert filled(histogram(torch.tensor([gap], dtype=torch.float64))) == {number: 1}


def test_every_value_that_differs_is_counted_once():
    """Bins found by comparing with the edges, not by a logarithm."""
    draw = torch.Generator().manual_seed(0)
    left = torch.randn(10_000, generator=draw, dtype=torch.float64)
    right = left + 10 ** (torch.randn(10_000, generator=draw, dtype=torch.float64) * 4 - 6)
    right[:3000] = left[:3000]
    right[3000], right[3001], left[3002], right[3002] = math.nan, math.inf, 0.0, -0.0
    found = difference(left, right)
    assert found.histogram.total == int((left != right).sum()) + 1  # 0.0 == -0.0, and their bits differ
    assert (found.histogram.zero, found.histogram.infinite, found.size) == (1, 2, 10_000)
    gaps = (left - right).abs()
    gaps = gaps[gaps.isfinite() & (gaps > 0)]
    edges = [10 ** (number / 2) for number in range(LOWEST + 1, HIGHEST + 1)]
    expected = torch.bucketize(gaps, torch.tensor(edges, dtype=torch.float64), right=True).bincount(minlength=60)
    assert found.histogram.counts == tuple(expected.tolist())


def test_histograms_of_several_columns_add_up():
    one, other = (torch.tensor(gaps, dtype=torch.float64) for gaps in ([1e-3, 0.0, math.inf], [1e-3, 2.0]))
    assert histogram(one) + histogram(other) == histogram(torch.cat([one, other]))


def test_json_holds_the_filled_stretch():
    gaps = torch.tensor([1e-3, 1e-2, 1e-2], dtype=torch.float64)
    assert histogram(gaps).as_json() == {"first": -6, "counts": [1, 0, 2], "zero": 0, "infinite": 0}
    assert histogram(torch.zeros(2)).as_json() == {"first": None, "counts": [], "zero": 2, "infinite": 0}
