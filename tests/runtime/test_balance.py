"""Balancing and rank order move rows only inside their mini-batch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.balance import balanced_order
from runtime.errors import BatchSizeError
from runtime.workers.group import rank_order

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
"""Mini-batches, ranks, rows a rank takes of each mini-batch."""


@given(SHAPES, st.randoms())
def test_rows_stay_in_their_mini_batch(shape, random):
    mini_batches, ranks, share = shape
    rows = ranks * share
    lengths = [random.randint(1, 50) for _ in range(mini_batches * rows)]
    order = balanced_order(lengths, rows, ranks)
    for k in range(mini_batches):
        assert sorted(order[k * rows : (k + 1) * rows].tolist()) == list(range(k * rows, (k + 1) * rows))


@given(SHAPES)
def test_each_rank_takes_its_share_of_every_mini_batch(shape):
    mini_batches, ranks, share = shape
    rows = ranks * share
    shards = rank_order(mini_batches * rows, rows, ranks).chunk(ranks)
    for rank, shard in enumerate(shards):
        for k, local in enumerate(shard.split(share)):
            start = k * rows + rank * share
            assert local.tolist() == list(range(start, start + share))


@given(SHAPES)
def test_argsort_puts_answers_back_into_row_order(shape):
    mini_batches, ranks, share = shape
    order = rank_order(mini_batches * ranks * share, ranks * share, ranks)
    assert torch.equal(order[order.argsort()], torch.arange(len(order)))


def test_tokens_are_spread_evenly():
    lengths = [100, 1, 1, 1, 100, 1, 1, 1]
    order = balanced_order(lengths, 8, 2).tolist()
    assert sum(lengths[row] for row in order[:4]) == sum(lengths[row] for row in order[4:]) == 103


def test_equal_lengths_and_one_rank_change_nothing():
    assert balanced_order([5, 9, 2, 7], 2, 1).tolist() == [0, 1, 2, 3]
    assert balanced_order([5, 5, 5, 5], 4, 2).tolist() == [0, 2, 1, 3]


@pytest.mark.parametrize(("rows", "mini_batch", "ranks"), [(6, 4, 2), (8, 4, 3)])
def test_what_does_not_divide_is_refused_with_the_numbers(rows, mini_batch, ranks):
    for attempt in (lambda: balanced_order([1] * rows, mini_batch, ranks), lambda: rank_order(rows, mini_batch, ranks)):
        with pytest.raises(BatchSizeError, match=rf"{rows} rows, mini-batches of {mini_batch} and {ranks} ranks"):
            attempt()
