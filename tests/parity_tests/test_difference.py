import math

import pytest
import torch

from parity_tests.difference import deep_differences, difference, shown


def test_equal_bits_are_no_difference_even_when_not_a_number():
    values = torch.tensor([1.0, math.nan, -math.inf])
    assert difference(values, values.clone()) is None
    assert difference(torch.empty(0), torch.empty(0)) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_neighbouring_floats_are_one_ulp_apart_across_zero_too(dtype):
    def ulps(a, b):
        found = difference(torch.tensor([0.0, a], dtype=dtype), torch.tensor([0.0, b], dtype=dtype))
        assert found.first == 1
        return found.max_ulp

    one = torch.tensor(1.0, dtype=dtype)
    above = (one + torch.finfo(dtype).eps).item()
    assert ulps(1.0, above) == 1
    assert ulps(-1.0, -above) == 1
    assert ulps(-0.0, 0.0) == 1
    tiny = torch.finfo(dtype).smallest_normal
    assert ulps(-tiny, tiny) == 2 * ulps(0.0, tiny) + 1


def test_distances_are_over_all_elements():
    found = difference(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 2.5, 3.0, 2.0]))
    assert (found.first, found.max_abs, found.mean_abs) == (1, 2.0, 0.625)


def test_a_nan_facing_a_number_is_infinitely_far():
    found = difference(torch.tensor([1.0, math.nan]), torch.tensor([1.0, 2.0]))
    assert (found.first, found.max_abs, found.max_ulp) == (1, math.inf, None)


def test_integers_and_rows_of_several_values():
    found = difference(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, 2], [3, 9]]))
    assert (found.first, found.max_abs, found.max_ulp) == (1, 5.0, None)


def test_deep_differences_name_the_path():
    left = {"a": {"lr": 1e-6, "same": [1, 2]}, "gone": "x", "type": 1}
    right = {"a": {"lr": 2e-6, "same": [1, 2]}, "type": 1.0, "new": None}
    assert deep_differences(left, right) == {
        "['a']['lr']": (1e-6, 2e-6),
        "['gone']": ("x", None),
        "['new']": (None, None),
        "['type']": (1, 1.0),
    }
    assert "['a']['lr']" not in deep_differences(left, right, [r"\['lr'\]$"])


def test_values_are_shown_in_the_digits_of_their_dtype():
    assert shown(torch.tensor(0.1)) == "0.1"
    assert shown(torch.tensor(0.1, dtype=torch.float64)) == "0.1"
    assert shown(torch.tensor(7)) == "7"
    assert shown(torch.tensor([1, 2])) == "[1, 2]"


@pytest.mark.parametrize(
    ("left", "right", "gap"),
    [
        (torch.tensor([2**53]), torch.tensor([2**53 + 1]), 1),
        (torch.tensor([-(2**63)]), torch.tensor([2**63 - 1]), 2.0**64),
        (torch.tensor([0, 2**64 - 1], dtype=torch.uint64), torch.tensor([0, 2**64 - 2], dtype=torch.uint64), 1),
        (torch.tensor([1, 200], dtype=torch.uint8), torch.tensor([1, 100], dtype=torch.uint8), 100),
        (torch.tensor([True]), torch.tensor([False]), 1),
        (torch.tensor([1 + 3j]), torch.tensor([1 - 1j]), 4),
        (torch.tensor([1.0]).to(torch.float8_e4m3fn), torch.tensor([1.25]).to(torch.float8_e4m3fn), 0.25),
    ],
    ids=str,
)
def test_the_distance_of_values_of_any_dtype(left, right, gap):
    found = difference(left, right)
    assert (found.first, found.max_abs) == (len(left) - 1, gap)
    assert difference(left, left) is None
