"""Laws of partitions and micro-batches."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compat.protocol import DataProto
from compat.utils import seqlen_balancing as balancing
from compat.utils.errors import PartitionError

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=24)


@given(LENGTHS, st.integers(1, 6))
def test_each_row_is_in_one_part_and_no_part_is_empty(lengths, parts):
    if len(lengths) < parts:
        with pytest.raises(PartitionError, match=f"{len(lengths)} rows"):
            balancing.get_seqlen_balanced_partitions(lengths, parts, equal_size=False)
        return
    found = balancing.get_seqlen_balanced_partitions(lengths, parts, equal_size=False)
    assert sorted(row for part in found for row in part) == list(range(len(lengths)))
    assert all(found)
    assert all(part == sorted(part) for part in found)


@given(LENGTHS, st.integers(1, 6))
def test_parts_of_one_size(lengths, parts):
    if len(lengths) % parts:
        with pytest.raises(PartitionError, match=f"{len(lengths)} rows"):
            balancing.karmarkar_karp(lengths, parts, equal_size=True)
        return
    found = balancing.karmarkar_karp(lengths, parts, equal_size=True)
    assert {len(part) for part in found} == {len(lengths) // parts}


@given(LENGTHS, st.integers(2, 6))
def test_no_part_exceeds_another_by_more_than_the_longest_row(lengths, parts):
    """The spread never grows when bundles are joined, and at the start it is at most the longest row."""
    sums = [sum(lengths[row] for row in part) for part in balancing.karmarkar_karp(lengths, parts, equal_size=False)]
    assert max(sums) - min(sums) <= max(lengths)


@given(st.permutations(range(12)))
def test_the_inverse_of_a_permutation(order):
    reverse = balancing.get_reverse_idx(order)
    assert [order[place] for place in reverse] == list(range(12))
    assert balancing.get_reverse_idx(reverse) == list(order)


@given(st.integers(0, 10**6), st.integers(1, 1000))
def test_rounding_up(a, b):
    assert balancing.ceildiv(a, b) * b - a in range(b)
    assert balancing.roundup_divisible(a, b) % b == 0
    assert 0 <= balancing.roundup_divisible(a, b) - a < b


def batch_of(lengths: list[int], width: int = 60) -> DataProto:
    rows = len(lengths)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    ids = torch.arange(rows * width).view(rows, width)
    uids = np.array([f"u{row}" for row in range(rows)], dtype=object)
    return DataProto.from_dict({"input_ids": ids, "attention_mask": mask}, {"uid": uids}, meta_info={"step": [1]})


@settings(deadline=None)
@given(LENGTHS, st.integers(60, 200), st.booleans(), st.integers(1, 3))
def test_micro_batches_keep_the_limit_and_rows_come_back_to_their_places(lengths, limit, balance, step):
    data = batch_of(lengths)
    with contextlib.suppress(PartitionError) if step > 1 else contextlib.nullcontext():
        # With step > 1 there may be so many micro-batches that some would be empty.
        parts, rows = balancing.prepare_dynamic_batch(data, limit, None, step, use_dynamic_bsz_balance=balance)
        check_micro_batches(data, parts, rows, limit, step)


def check_micro_batches(data, parts, rows, limit, step):
    assert len(parts) % step == 0
    assert all(int(part.batch["attention_mask"].sum()) <= limit for part in parts)
    joined = torch.cat([part.batch["input_ids"] for part in parts])
    assert torch.equal(balancing.restore_dynamic_batch(joined, rows), data.batch["input_ids"])
    assert [uid for part in parts for uid in part.non_tensor_batch["uid"]] == [
        f"u{row}" for part in rows for row in part
    ]


def test_jagged_rows_come_back_to_their_places():
    rows = [torch.arange(2), torch.arange(5), torch.arange(3)]
    moved = torch.nested.as_nested_tensor([rows[2], rows[0], rows[1]], layout=torch.jagged)
    back = balancing.restore_dynamic_batch(moved, [[2], [0, 1]])
    assert [row.tolist() for row in back.unbind()] == [row.tolist() for row in rows]


def test_meta_info_is_copied():
    data = batch_of([3, 4])
    parts, _ = balancing.prepare_dynamic_batch(data, 60)
    parts[0].meta_info["step"].append(2)
    assert data.meta_info["step"] == [1]


def test_neighbours_stay_together():
    data = batch_of([10, 20, 30, 5, 7, 9])
    _, rows = balancing.rearrange_micro_batches(data.batch, 60, force_group_size=2)
    assert all(part[i] % 2 == 0 and part[i + 1] == part[i] + 1 for part in rows for i in range(0, len(part), 2))


@pytest.mark.parametrize(
    ("lengths", "arguments", "why"),
    [
        ([60, 3], {"max_token_len": 59}, "has 60 tokens"),
        ([3, 4], {"max_token_len": 60, "min_num_micro_batch": 3}, "3 micro-batches"),
        ([3, 4, 5], {"max_token_len": 60, "force_group_size": 2}, "3 rows do not divide"),
    ],
)
def test_what_cannot_be_split_is_named(lengths, arguments, why):
    with pytest.raises(PartitionError, match=why):
        balancing.rearrange_micro_batches(batch_of(lengths).batch, **arguments)


def test_rows_and_places_must_be_as_many():
    with pytest.raises(PartitionError, match="3 rows were computed, and the micro-batches had 2"):
        balancing.restore_dynamic_batch(torch.zeros(3), [[0], [1]])
    with pytest.raises(PartitionError, match="2 lengths and 1 uids"):
        balancing.get_group_balanced_partitions([1, 2], ["a"], 1)
