"""Segments, kept tokens, reductions, group statistics and scans against the plainest possible computation."""

import pytest
import torch

from shared_algos.groups import center_groups, group_mean, group_std
from shared_algos.kept_tokens import KeptTokens
from shared_algos.reductions import all_finite, count, masked_mean, masked_sum, masked_var, masked_whiten, total
from shared_algos.scan import gae_scan, reverse_scan
from shared_algos.segments import Segments, as_bool

LENGTHS = [3, 0, 1, 5, 2, 5]
SEGMENTS = Segments.from_lengths(LENGTHS)
VALUES = torch.randn(16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([1, 0, 1, 1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 1, 0, 1])


def test_row_sums():
    expected = torch.stack([row.sum() for row in VALUES.split(LENGTHS)])
    torch.testing.assert_close(SEGMENTS.sum(VALUES), expected)
    assert torch.autograd.gradcheck(SEGMENTS.sum, (VALUES.clone().requires_grad_(),))


def test_row_sums_at_mask_1():
    values = VALUES.masked_fill(MASK == 0, torch.nan)
    expected = [row[mask == 1].sum() for row, mask in zip(VALUES.split(LENGTHS), MASK.split(LENGTHS), strict=True)]
    torch.testing.assert_close(SEGMENTS.sum(values, MASK), torch.stack(expected))
    assert SEGMENTS.sum(VALUES > 0, MASK).tolist() == SEGMENTS.sum((VALUES > 0) & (MASK == 1)).tolist()


def test_spreading_repeats_a_row():
    per_row = torch.arange(6.0)
    assert SEGMENTS.spread(per_row).tolist() == [0] * 3 + [2] + [3] * 5 + [4] * 2 + [5] * 5
    assert SEGMENTS.spread(per_row + 1, MASK).tolist() == [1, 0, 1, 3, 4, 4, 0, 0, 4, 5, 0, 6, 6, 6, 0, 6]


def test_following_stops_at_the_end_of_a_row():
    expected = torch.cat([torch.cat([row[1:], row.new_zeros(1)]) for row in VALUES.split(LENGTHS) if len(row)])
    assert SEGMENTS.following(VALUES).equal(expected)
    assert Segments.from_lengths([]).following(VALUES[:0]).numel() == 0


def test_kept_tokens_of_rows_in_another_order():
    column = torch.arange(16.0)
    kept = KeptTokens.of(SEGMENTS, MASK.bool(), torch.tensor([3, 0]))
    assert kept.segments.offsets.tolist() == [0, 3, 5]
    assert kept.tokens.tolist() == kept.gather(column).tolist() == [4, 5, 8, 0, 2]
    assert kept.gather_sums(column).tolist() == [4, 5 + 6 + 7, 8, 0 + 1, 2]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        spread = kept.scatter(kept.gather(column), dtype)
        assert spread.dtype == dtype
        assert spread.tolist() == [0, 0, 2, 0, 4, 5, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]


def test_what_stands_before_the_first_kept_token_is_added_to_it():
    kept = KeptTokens.of(Segments.from_lengths([1, 4]), torch.tensor([1, 0, 0, 1, 0]).bool(), torch.tensor([0, 1]))
    assert kept.gather_sums(torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])).tolist() == [1, 30]


def test_masks_of_any_dtype_and_what_is_not_finite():
    for dtype in (torch.bool, torch.int64, torch.int32, torch.float32, torch.bfloat16):
        assert as_bool(MASK.to(dtype)).tolist() == MASK.tolist()
    assert all_finite(VALUES)
    assert all_finite(torch.full((3,), 1e308, dtype=torch.float64)), "their sum is infinite"
    for bad in (torch.inf, -torch.inf, torch.nan):
        assert not all_finite(torch.tensor([0.0, bad]))
        assert not all_finite(torch.tensor([0.0, bad], dtype=torch.bfloat16))


def test_totals_are_added_in_order():
    values = torch.randn(50_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert float(total(values)) == float(values.cumsum(0)[-1])
    assert float(total(values[:0])) == 0


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


def test_gae_scans_td_errors():
    rewards, values = VALUES.split(LENGTHS), VALUES.flip(0).split(LENGTHS)
    errors = [r + 0.9 * torch.cat([v[1:], v.new_zeros(1)]) - v for r, v in zip(rewards, values, strict=True) if len(r)]
    expected = reverse_scan(torch.cat(errors), SEGMENTS, 0.9 * 0.8)
    advantages, returns = gae_scan(VALUES, VALUES.flip(0), SEGMENTS, 0.9, 0.8)
    assert advantages.equal(expected)
    assert returns.equal(expected + VALUES.flip(0))


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
