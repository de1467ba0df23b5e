"""``verl.utils.seqlen_balancing``: rows partitioned so that each part has about as many tokens, or as much work."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from compat.utils.errors import PartitionError
from compat.utils.karmarkar_karp import Bundle, largest_differences

if TYPE_CHECKING:
    from tensordict import TensorDict

    from compat.protocol import DataProto

WORK_PER_TOKEN = 24576
"""Work of a token that does not depend on the others, in units of one pair of tokens in attention (a 7B model)."""


def ceildiv(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(a // -b)


def roundup_divisible(a: int, b: int) -> int:
    """The least multiple of ``b`` that is not below ``a``."""
    return ceildiv(a, b) * b


def calculate_workload(seqlen_list: Tensor) -> Tensor:
    """Relative work of sequences of these lengths ``[B]``: linear in the tokens, and quadratic for attention."""
    return WORK_PER_TOKEN * seqlen_list + seqlen_list**2


def karmarkar_karp(seqlen_list: Sequence[int], k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Row numbers of ``k_partitions`` parts of near-equal sums, by the largest differencing method.

    equal_size: each part has equally many rows. Raises ``PartitionError`` where they do not divide.
    """
    if equal_size and len(seqlen_list) % k_partitions:
        raise PartitionError(f"{len(seqlen_list)} rows cannot be {k_partitions} parts of one size")
    ordered = sorted((length, row) for row, length in enumerate(seqlen_list))
    together = k_partitions if equal_size else 1
    starts = [ordered[start : start + together] for start in range(0, len(ordered), together)]
    bundles = [Bundle.of([(row, length) for length, row in start], k_partitions) for start in starts]
    return largest_differences(bundles).rows()


def greedy_partition(seqlen_list: Sequence[int], k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Row numbers of parts filled in row order, each row to the part with the least so far."""
    bias = sum(seqlen_list) + 1 if equal_size else 0  # larger than all rows: the count of rows decides first
    parts: list[list[int]] = [[] for _ in range(k_partitions)]
    sums = [0] * k_partitions
    for row, length in enumerate(seqlen_list):
        least = min(range(k_partitions), key=sums.__getitem__)
        parts[least].append(row)
        sums[least] += length + bias
    if equal_size and len({len(part) for part in parts}) > 1:
        raise PartitionError(f"{len(seqlen_list)} rows cannot be {k_partitions} parts of one size")
    return parts


def get_seqlen_balanced_partitions(seqlen_list: Sequence[int], k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Row numbers, ascending, of ``k_partitions`` parts of near-equal sums; every part has a row.

    Raises ``PartitionError`` for fewer rows than parts, and where ``equal_size`` does not divide.
    """
    if len(seqlen_list) < k_partitions:
        raise PartitionError(f"{len(seqlen_list)} rows cannot be {k_partitions} parts with a row in each")
    parts = [sorted(part) for part in karmarkar_karp(seqlen_list, k_partitions, equal_size)]
    if not all(parts):
        raise PartitionError(f"a part of {k_partitions} got no row of lengths {list(seqlen_list)}; ask for fewer parts")
    return parts


def log_seqlen_unbalance(
    seqlen_list: Sequence[int], partitions: Sequence[Sequence[int]], prefix: str
) -> dict[str, Any]:
    """Tokens of the fullest and the emptiest part, before (rows in order) and after partitioning, as metrics."""
    size = len(seqlen_list) // len(partitions)
    before = [sum(seqlen_list[start : start + size]) for start in range(0, len(seqlen_list), size)]
    after = [sum(seqlen_list[row] for row in part) for part in partitions]
    return {
        f"{prefix}/min": min(before),
        f"{prefix}/max": max(before),
        f"{prefix}/minmax_diff": max(before) - min(before),
        f"{prefix}/balanced_min": min(after),
        f"{prefix}/balanced_max": max(after),
        f"{prefix}/mean": sum(before) / len(partitions),
    }


def get_group_balanced_partitions(
    seqlen_list: Sequence[int], uid_list: Sequence[Any], k_partitions: int
) -> list[list[int]]:
    """Like the balanced partitions, rows of one uid staying together; each part gets equally many uids.

    Rows of a uid must be neighbours. Raises ``PartitionError`` for fewer uids than parts.
    """
    if len(seqlen_list) != len(uid_list):
        raise PartitionError(f"{len(seqlen_list)} lengths and {len(uid_list)} uids: give one of each for a row")
    groups: list[list[int]] = []
    for row, uid in enumerate(uid_list):
        if row and uid == uid_list[row - 1]:
            groups[-1].append(row)
        else:
            groups.append([row])
    work = calculate_workload(torch.as_tensor(seqlen_list, dtype=torch.int64)).tolist()
    parts = get_seqlen_balanced_partitions([sum(work[row] for row in rows) for rows in groups], k_partitions, True)
    return [sorted(chain.from_iterable(groups[group] for group in part)) for part in parts]


def get_reverse_idx(idx_map: Sequence[int]) -> list[int]:
    """The inverse of a permutation: ``result[idx_map[i]] == i``."""
    reverse = list(idx_map)
    for place, row in enumerate(idx_map):
        reverse[row] = place
    return reverse


def rearrange_micro_batches(
    batch: TensorDict,
    max_token_len: int,
    dp_group: Any = None,
    num_batches_divided_by: int | None = None,
    same_micro_num_in_dp: bool = True,
    min_num_micro_batch: int | None = None,
    use_dynamic_bsz_balance: bool = True,
    force_group_size: int = 1,
) -> tuple[list[TensorDict], list[list[int]]]:
    """Split ``batch`` into micro-batches of at most ``max_token_len`` tokens each, of near-equal work.

    batch: with jagged ``input_ids``, or padded with ``attention_mask [B, S]``. dp_group: every rank of it gets the same
    number of micro-batches (a collective call). num_batches_divided_by: the number is a multiple of this.
    use_dynamic_bsz_balance: the heaviest in the middle, the lightest at both ends. force_group_size: so many
    neighbouring rows stay together.

    Returns the micro-batches and the row numbers of each. Raises ``PartitionError`` when a row (or group) alone has too
    many tokens, or there are fewer rows than micro-batches.
    """
    lengths = _lengths(batch)
    if len(lengths) % force_group_size:
        raise PartitionError(f"{len(lengths)} rows do not divide into groups of {force_group_size}")
    groups = lengths.view(-1, force_group_size)
    tokens, work = groups.sum(1).tolist(), calculate_workload(groups).sum(1).tolist()
    synced = dp_group if dist.is_initialized() and same_micro_num_in_dp else None
    longest, fewest = _agree(max(tokens), synced), -_agree(-len(tokens), synced)
    if longest > max_token_len:
        raise PartitionError(
            f"a row (or group of {force_group_size}) has {longest} tokens, and a micro-batch at most {max_token_len}: "
            "raise ppo_max_token_len_per_gpu"
        )
    count = _agree(max(min(len(tokens), ceildiv(sum(tokens), max_token_len)), min_num_micro_batch or 1), synced)
    step = num_batches_divided_by or 1
    parts = _parts_within(tokens, work, roundup_divisible(count, step), step, max_token_len, fewest, synced)
    if use_dynamic_bsz_balance:
        parts.sort(key=lambda part: (sum(work[group] for group in part), part[0]), reverse=True)
        parts = parts[::2][::-1] + parts[1::2]
    rows = [[row for group in part for row in _rows_of(group, force_group_size)] for part in parts]
    from compat.tensordict_utils import index_select_tensor_dict

    return [index_select_tensor_dict(batch, part) for part in rows], rows  # type: ignore[misc]


def _lengths(batch: TensorDict) -> Tensor:
    ids = batch["input_ids"]
    lengths = ids.offsets().diff() if ids.is_nested else batch["attention_mask"].sum(dim=1)
    return lengths.long().cpu()


def _rows_of(group: int, size: int) -> range:
    return range(group * size, (group + 1) * size)


def _agree(value: int, group: Any) -> int:
    """The largest ``value`` of all ranks of ``group``; without one, ``value`` itself."""
    if group is None:
        return value
    from compat.utils.device import get_device_name

    shared = torch.tensor([value], device=get_device_name())
    dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=group)
    return int(shared.item())


def _parts_within(
    tokens: list[int], work: list[int], count: int, step: int, limit: int, fewest: int, synced: Any
) -> list[list[int]]:
    """The first partition, from ``count`` parts upwards, in which no part has more than ``limit`` tokens."""
    while True:
        if count > fewest:
            raise PartitionError(
                f"{count} micro-batches are needed for at most {limit} tokens in each, and a rank has {fewest} rows "
                "(or groups); raise the limit of tokens, or give every rank more rows"
            )
        parts = get_seqlen_balanced_partitions(work, count, equal_size=False)
        is_over = any(sum(tokens[group] for group in part) > limit for part in parts)
        if not _agree(int(is_over), synced):
            return parts
        count += step


def prepare_dynamic_batch(
    data: DataProto, max_token_len: int, dp_group: Any = None, num_batches_divided_by: int | None = None, **more: Any
) -> tuple[list[DataProto], list[list[int]]]:
    """:func:`rearrange_micro_batches` of a ``DataProto``, object columns and a copy of ``meta_info`` included."""
    from compat.protocol import DataProto

    micro_batches, rows = rearrange_micro_batches(data.batch, max_token_len, dp_group, num_batches_divided_by, **more)  # type: ignore[arg-type]
    return [
        DataProto.from_dict(
            dict(tensors.items()),  # type: ignore[arg-type]
            {name: column[part] for name, column in data.non_tensor_batch.items()},
            meta_info=copy.deepcopy(data.meta_info),
        )
        for tensors, part in zip(micro_batches, rows, strict=True)
    ], rows


def restore_dynamic_batch(data: Tensor, batch_idx_list: Sequence[Sequence[int]]) -> Tensor:
    """Rows of micro-batches, concatenated in ``data [B, ...]``, back in their own places."""
    rows = list(chain.from_iterable(batch_idx_list))
    if len(rows) != data.shape[0]:
        raise PartitionError(f"{data.shape[0]} rows were computed, and the micro-batches had {len(rows)}")
    places = get_reverse_idx(rows)
    if data.is_nested:
        parts = data.unbind()
        return torch.nested.as_nested_tensor([parts[place] for place in places], layout=torch.jagged)
    return data[torch.tensor(places, dtype=torch.long, device=data.device)]
