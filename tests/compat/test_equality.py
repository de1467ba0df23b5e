import numpy as np
import torch

from compat.equality import deep_equal, first_differing_row, values_agree
from compat.jagged import jagged
from shared_algos.segments import Segments

NAN = float("nan")


def test_equality_is_of_type_and_value():
    assert deep_equal(np.array([1, 2]), np.array([1, 2]))
    assert not deep_equal(1, 1.0)
    assert not deep_equal(1, True)
    assert not deep_equal(np.array([1]), np.array([1.0]))
    assert not deep_equal(np.array([1]), np.array([1, 1]))
    assert deep_equal([1], [1.0])


def test_nan_equals_nan_at_any_depth():
    assert deep_equal(NAN, float("nan"))
    assert deep_equal(np.array([1.0, NAN]), np.array([1.0, NAN]))
    assert deep_equal({"a": [np.float32(NAN)]}, {"a": [np.float32(NAN)]})
    assert deep_equal(
        np.array([{"x": np.array([NAN])}], dtype=object), np.array([{"x": np.array([NAN])}], dtype=object)
    )
    assert not deep_equal({"a": [NAN]}, {"a": [0.0]})


def test_arrays_of_text_and_time_are_compared():
    assert deep_equal(np.array(["a", "b"]), np.array(["a", "b"]))
    assert deep_equal(np.array(["NaT"], dtype="datetime64[s]"), np.array(["NaT"], dtype="datetime64[s]"))


def test_tensors_inside_containers():
    assert deep_equal({"image": torch.ones(2)}, {"image": torch.ones(2)})
    assert not deep_equal([torch.ones(2)], [torch.zeros(2)])
    assert not deep_equal([torch.ones(2)], [torch.ones(2), torch.ones(2)])
    assert not deep_equal({"a": torch.ones(2)}, {"b": torch.ones(2)})


def test_cycles_end():
    left: list = [np.array([1, 2])]
    right: list = [np.array([1, 2])]
    left.append(left)
    right.append(right)
    assert deep_equal(left, right)
    right[0][0] = 5
    assert not deep_equal(left, right)


def test_values_agree_follows_plain_equality():
    assert values_agree(1, 1.0)
    assert values_agree({"a": np.array([1, 2])}, {"a": np.array([1, 2])})
    assert not values_agree({"a": np.array([1, 2])}, {"a": np.array([1, 3])})


def test_first_differing_row_of_dense_columns():
    left = torch.tensor([[1.0, NAN], [2.0, 3.0], [4.0, 5.0]])
    right = left.clone()
    assert first_differing_row(left, right) is None
    right[1, 1] = 0
    right[2, 0] = 0
    assert first_differing_row(left, right) == 1
    assert first_differing_row(left[1:], left[1:].int()) is None
    assert first_differing_row(left, left.int()) == 0
    assert first_differing_row(left, left[:2]) == 0
    assert first_differing_row(torch.tensor(1), torch.tensor(1)) is None
    assert first_differing_row(left, left.numpy()) == 0


def test_first_differing_row_of_jagged_columns():
    left = jagged(torch.arange(6), Segments.from_lengths([2, 1, 3]))
    assert first_differing_row(left, jagged(torch.arange(6), Segments.from_lengths([2, 1, 3]))) is None
    assert first_differing_row(left, jagged(torch.arange(6), Segments.from_lengths([2, 2, 2]))) == 1
    assert first_differing_row(left, jagged(torch.arange(3), Segments.from_lengths([2, 1]))) == 2
    changed = torch.arange(6)
    changed[5] = 0
    assert first_differing_row(left, jagged(changed, Segments.from_lengths([2, 1, 3]))) == 2
    assert first_differing_row(left, torch.zeros(3, 2, dtype=torch.int64)) == 0
