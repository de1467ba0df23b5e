"""Comparing reads pieces of bounded size, however many rows there are; columns of any shape are told alike."""

import dataclasses

import pytest
import torch
from safetensors import safe_open

from parity_tests import columns
from parity_tests.compare import compare
from parity_tests.difference import difference, difference_of_pieces
from parity_tests.synthetic import Size, synthetic_capture
from runtime.trainer.hooks import StageRecord
from runtime.trajectories import TrajectoryBatch
from shared_algos.segments import Segments

PIECE, LONGEST = 1000, 300


class Counting:
    """``safe_open`` that notes how many values each read of it returns."""

    largest = 0

    def __init__(self, *arguments, **options):
        self._file = safe_open(*arguments, **options)

    def __enter__(self):
        self._file.__enter__()
        return self

    def __exit__(self, *error):
        return self._file.__exit__(*error)

    def get_tensor(self, name):
        return self._note(self._file.get_tensor(name))

    def get_slice(self, name):
        return _CountingSlice(self._file.get_slice(name))

    @classmethod
    def _note(cls, tensor):
        cls.largest = max(cls.largest, tensor.numel())
        return tensor


class _CountingSlice:
    def __init__(self, file_slice):
        self._slice = file_slice
        self.get_shape, self.get_dtype = file_slice.get_shape, file_slice.get_dtype

    def __getitem__(self, place):
        return Counting._note(self._slice[place])


@pytest.fixture
def largest_read(monkeypatch):
    """How many values the largest read so far returned; pieces are of 1000."""
    monkeypatch.setattr(columns, "PIECE", PIECE)
    monkeypatch.setattr(columns, "safe_open", Counting)
    monkeypatch.setattr(Counting, "largest", 0)
    return lambda: Counting.largest


@pytest.mark.parametrize("change", [{}, {"drift": 0.5}, {"reverse": True}], ids=["equal", "drift", "reversed"])
def test_no_read_is_larger_than_a_piece_and_a_row(tmp_path, largest_read, change):
    size = Size(rows=240, longest=LONGEST)
    pair = synthetic_capture(tmp_path / "A", size, False), synthetic_capture(tmp_path / "B", size, True, **change)
    tokens = pair[0].stage(1, "rollout").responses.num_tokens
    verdict = compare(*pair)
    assert verdict.exit_code == bool(change)
    assert tokens > 8 * PIECE
    assert PIECE <= largest_read() < PIECE + LONGEST


@pytest.mark.parametrize("width", [(), (3,), (2, 2)])
def test_pieces_say_what_the_whole_says(monkeypatch, save, records, width):
    """Of a column of any width that takes several pieces, the first of them equal."""
    monkeypatch.setattr(columns, "PIECE", 16)
    left = records[1, "rollout"].batch
    values = torch.randn(left.sequences.num_tokens, *width)
    place = int(left.sequences.offsets[9])
    changed = values.clone()
    changed[place:] += 0.5
    sides = [
        save(name, {0: StageRecord(1, "rollout", dataclasses.replace(left, columns={"position_ids": column}))})
        for name, column in (("legacy", values), ("v1", changed))
    ]
    verdict = compare(*sides).first
    whole = difference(values, changed)
    assert (verdict.key, verdict.token) == (str(left.keys[9]), 0)
    assert verdict.max_abs == whole.max_abs
    assert verdict.mean_abs == pytest.approx(whole.mean_abs, rel=1e-12)
    assert verdict.max_ulp == whole.max_ulp
    assert sides[0].stage(1, "rollout").read("position_ids").equal(values)


def test_differences_of_pieces_are_those_of_the_whole():
    left, right = torch.randn(50, 2), torch.randn(50, 2)
    right[:20] = left[:20]
    whole, parts = difference(left, right), difference_of_pieces(zip(left.split(7), right.split(7), strict=True))
    assert (whole.first, whole.max_abs, whole.max_ulp) == (parts.first, parts.max_abs, parts.max_ulp)
    assert parts.first == 20
    assert parts.mean_abs == pytest.approx(whole.mean_abs, rel=1e-12)
    assert difference_of_pieces([]) is None


def test_an_empty_column_is_read_and_compared(save, records):
    keys = records[1, "rollout"].batch.keys
    nothing = Segments.from_lengths([0] * len(keys))
    record = StageRecord(1, "rollout", TrajectoryBatch(keys, nothing, nothing, {"responses": torch.zeros(0)}))
    assert compare(save("legacy", {0: record}), save("v1", {0: record})).first is None
