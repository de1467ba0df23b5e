"""Splits are complete, deterministic and within their limit."""

from __future__ import annotations

import random

from runtime.engine.micro_batches import WHOLE, RowLimit, TokenLimit


def test_by_rows_keeps_the_order() -> None:
    assert RowLimit(2).split([5, 9, 1, 7, 3]) == [[0, 1], [2, 3], [4]]
    assert RowLimit(8).split([5, 9, 1]) == [[0, 1, 2]]
    assert WHOLE.split([5, 9, 1]) == [[0, 1, 2]]
    assert WHOLE.split([]) == []


def test_by_tokens_fills_up_to_the_limit() -> None:
    assert TokenLimit(10).split([5, 9, 1, 7, 3]) == [[0], [1, 2], [3, 4]]


def test_a_row_longer_than_the_limit_stands_alone() -> None:
    assert TokenLimit(10).split([4, 25, 6]) == [[0, 2], [1]]


def test_by_tokens_holds_every_row_once_and_no_more_than_the_limit() -> None:
    draw = random.Random(0)
    for _ in range(200):
        lengths = [draw.randint(1, 60) for _ in range(draw.randint(1, 40))]
        split = TokenLimit(64).split(lengths)
        assert sorted(row for rows in split for row in rows) == list(range(len(lengths)))
        assert all(sum(lengths[row] for row in rows) <= 64 for rows in split)
        assert split == sorted(sorted(rows) for rows in split)
        # First fit leaves no two micro-batches that would go into one.
        sizes = sorted(sum(lengths[row] for row in rows) for rows in split)
        assert len(sizes) < 2 or sizes[0] + sizes[1] > 64
