"""Segments, reductions, group statistics and the reverse scan against the plainest possible computation."""

import pytest
import torch

from shared_algos.groups import center_groups, group_mean, group_std
from shared_algos.reductions import count, masked_mean, masked_sum, masked_var, masked_whiten
from shared_algos.scan import reverse_scan
from shared_algos.segments import Segments

LENGTHS = [3, 0, 1, 5, 2, 5]
SEGMENTS = Segments.from_lengths(LENGTHS)
VALUES = torch.randn(16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([1, 0, 1, 1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 1, 0, 1])


def test_row_sums():
    expected = torch.stack([row.sum() for row in VALUES.split(LENGTHS)])
    torch.testing.assert_close(SEGMENTS.sum(VALUES), expected)
    assert torch.autograd.gradcheck(SEGMENTS.sum, (VALUES.clone().requires_grad_(),))


def test_following_stops_at_the_end_of_a_row():
    expected = torch.cat([torch.cat([row[1:], row.new_zeros(1)]) for row in VALUES.split(LENGTHS) if len(row)])
    assert SEGMENTS.following(VALUES).equal(expected)
    assert Segments.from_lengths([]).following(VALUES[:0]).numel() == 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_masked_reductions(dtype):
    chosen, mask = VALUES[MASK.bool()], MASK.to(dtype)
    values = VALUES.masked_fill(~MASK.bool(), torch.nan)
    assert float(count(mask, SEGMENTS)) == len(chosen)
    torch.testing.assert_close(masked_sum(values, mask, SEGMENTS), chosen.sum())
    torch.testing.assert_close(masked_mean(values, mask, SEGMENTS), chosen.mean())
    torch.testing.assert_close(masked_var(values, mask, SEGMENTS), chosen.var())
    whitened = masked_whiten(values, mask, SEGMENTS)
    torch.testing.assert_close(whitened[MASK.bool()], (chosen - chosen.mean()) / (chosen.var() + 1e-8).sqrt())
    assert not whitened[~MASK.bool()].any()


@pytest.mark.parametrize("kept", [0, 1])
def test_whitening_of_fewer_than_two_tokens_is_zero(kept):
    assert not masked_whiten(VALUES, torch.arange(16) < kept, SEGMENTS).any()


def test_float32_is_reduced_in_float64():
    ones = torch.full((1000,), 0.1)
    assert masked_sum(ones, ones, Segments.from_lengths([400, 600])).dtype == torch.float64


def test_group_statistics():
    groups, scores = Segments.from_lengths([4, 1, 3]), VALUES[:8]
    first, lone, last = scores.split([4, 1, 3])
    torch.testing.assert_close(group_mean(scores, groups), torch.stack([first.mean(), lone[0], last.mean()]))
    torch.testing.assert_close(
        group_std(scores, groups), torch.stack([first.std(), torch.ones(()).double(), last.std()])
    )
    torch.testing.assert_close(
        center_groups(scores, groups), torch.cat([first - first.mean(), lone, last - last.mean()])
    )


@pytest.mark.parametrize("lengths", [LENGTHS, [16], [1] * 16, [0, 0, 16, 0]])
def test_reverse_scan_has_the_bits_of_the_recurrence(lengths):
    segments = Segments.from_lengths(lengths)
    expected = []
    for row in VALUES.split(lengths):
        running, reversed_row = 0.0, []
        for delta in reversed(row.tolist()):
            running = delta + 0.97 * running
            reversed_row.append(running)
        expected += reversed(reversed_row)
    assert reverse_scan(VALUES, segments, 0.97).tolist() == expected


def test_reverse_scan_of_nothing():
    assert reverse_scan(VALUES[:0], Segments.from_lengths([0, 0]), 0.9).numel() == 0
    assert reverse_scan(VALUES[:0], Segments.from_lengths([]), 0.9).numel() == 0
