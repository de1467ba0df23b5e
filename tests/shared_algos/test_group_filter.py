"""Groups are kept where their members differ; equal means equal to the last bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared_algos.errors import NonFiniteError
from shared_algos.group_filter import groups_with_spread


def kept(values, groups):
    return groups_with_spread(torch.tensor(values, dtype=torch.float64), torch.tensor(groups)).tolist()


def test_groups_without_spread_are_dropped_and_groups_of_one_kept():
    assert kept([1.0, 0.0, 2.0, 1.0, 0.5], [7, 3, -4, 7, 3]) == [False, True, True, False, True]


@pytest.mark.parametrize(("value", "size"), [(3.3, 7), (0.1, 6), (float("inf"), 2)])
def test_equal_values_are_equal_whatever_their_std_rounds_to(value, size):
    assert not any(kept([value] * size, [0] * size))
    assert all(kept([value] * size + [1.0], [0] * (size + 1)))


def test_the_smallest_difference_is_a_difference():
    assert all(kept([3.3, 3.3000000000000003], [0, 0]))


@given(rows=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.1, 0.2, -1.0])), max_size=12), data=st.data())
@settings(deadline=None, max_examples=200)
def test_against_python_in_any_order(rows, data):
    rows = data.draw(st.permutations(rows))
    groups = [group for group, _ in rows]
    members = {group: [value for g, value in rows if g == group] for group in groups}
    values = torch.tensor([value for _, value in rows])
    expected = [len(members[group]) == 1 or len(set(members[group])) > 1 for group in groups]
    assert groups_with_spread(values, torch.tensor(groups, dtype=torch.int64)).tolist() == expected


def test_a_value_that_is_nan_names_its_row():
    with pytest.raises(NonFiniteError, match="the value of row 1 is nan"):
        kept([1.0, float("nan")], [0, 0])
