"""How the rows of a batch reach the ranks of a model, so that results do not depend on the number of ranks.

verl gives each rank one contiguous piece and cuts mini-batches inside it, so that which rows share a mini-batch depends
on the number of ranks. Here mini-batch k is rows ``[k*M, (k+1)*M)`` of the batch for any number of ranks; rank r's k-th
slice is its share of it (``runtime.workers.group.rank_order``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from compat.protocol import DataProto
from compat.protocol_ops import pad_dataproto_to_divisor
from compat.single_controller.dispatch import PADDING_SIZE_KEY, dispatch_one_to_all, materialize_futures
from legacy.settings import whole_config
from runtime import containers
from runtime.workers.group import rank_order


def mini_batch_rows(settings: DictConfig) -> int:
    """Rows of one mini-batch of a group whose workers were given ``settings``, the actor's, or the critic's config.

    ``ppo_mini_batch_size`` counts prompts, each of which has ``rollout.n`` rows.
    """
    own = settings.actor if "actor" in settings else settings
    return int(own.ppo_mini_batch_size) * int(whole_config(settings).actor_rollout_ref.rollout.n)


def infer_dispatch(group: Any, data: Any, **keywords: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One shard a rank; rows that do not divide are filled up with copies, which the group drops from the answer."""
    count = 0
    ((data,), keywords) = materialize_futures(data, **keywords)
    if isinstance(data, DataProto):
        data, count = pad_dataproto_to_divisor(data, group.world_size)
    _, to_all = dispatch_one_to_all(group, **keywords)
    return (_shards(group, data),), {**to_all, PADDING_SIZE_KEY: count}


def infer_collect(group: Any, answers: Sequence[Any]) -> Any:
    """The answers of all ranks in the order of the batch that was dispatched."""
    together = containers.concat(answers)
    return containers.select_rows(together, torch.argsort(_order(group, len(together))))


def update_dispatch(group: Any, data: Any, **keywords: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One shard a rank; a last mini-batch that is too small is filled up with rows of mask 0, which weigh nothing."""
    ((data,), keywords) = materialize_futures(data, **keywords)
    if isinstance(data, DataProto):
        data = with_silent_rows(data, mini_batch_rows(_settings(group)))
    _, to_all = dispatch_one_to_all(group, **keywords)
    return (_shards(group, data),), to_all


def update_collect(group: Any, answers: Sequence[Any]) -> Any:  # noqa: ARG001
    """Rank 0's answer: every rank reports the whole mini-batch."""
    return answers[0]


def all_rows_to_rank_zero(group: Any, data: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The whole batch to rank 0, ``None`` to the others, which take part in what is collective."""
    return ([data, *[None] * (group.world_size - 1)],), {}


def with_silent_rows(data: DataProto, multiple: int) -> DataProto:
    """``data`` with rows added until their number divides by ``multiple``: copies whose ``response_mask`` is 0."""
    padded, count = pad_dataproto_to_divisor(data, multiple)
    if count:
        mask = padded["response_mask"].clone()
        mask[-count:] = 0
        padded = padded.select()
        padded.batch["response_mask"] = mask  # type: ignore[index]
    return padded


INFER = {"dispatch_fn": infer_dispatch, "collect_fn": infer_collect}
UPDATE = {"dispatch_fn": update_dispatch, "collect_fn": update_collect}
GENERATE = {"dispatch_fn": all_rows_to_rank_zero, "collect_fn": update_collect}


def _shards(group: Any, data: Any) -> list[Any]:
    order = _order(group, len(data))
    return list(containers.shard(containers.select_rows(data, order), group.world_size))


def _order(group: Any, rows: int) -> Tensor:
    size = mini_batch_rows(_settings(group))
    return rank_order(rows, size if rows % size == 0 else rows, group.world_size)


def _settings(group: Any) -> DictConfig:
    return group.ray_cls_with_init.kwargs["config"]
