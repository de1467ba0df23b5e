"""How the rows of a batch reach the ranks of a model, so that results do not depend on the number of ranks.

verl gives each rank one contiguous piece and cuts mini-batches inside it, so that which rows share a mini-batch depends
on the number of ranks. Here mini-batch k is rows ``[k*M, (k+1)*M)`` of the batch for any number of ranks; rank r's k-th
slice is its share of it (``runtime.workers.group.rank_order``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import ray
import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from torch import Tensor

from compat import tensordict_rows as _tensordict_rows  # noqa: F401  (registers TensorDict with runtime.containers)
from compat.futures import DataProtoFuture
from compat.ppo.columns import ensure_response_mask
from compat.protocol import DataProto
from compat.single_controller.dispatch import PADDING_SIZE_KEY, dispatch_one_to_all, materialize_futures
from compat.single_controller.errors import WorkerGroupError
from compat.tensordict_utils import get
from legacy.settings import whole_config
from runtime import containers
from runtime.workers.group import rank_order
from runtime.workers.model_workers import UpdatePlan

_MASKS = ("response_mask", "loss_mask")
"""Columns of which a row of zeros takes no part in a loss."""


def configured_plan(settings: DictConfig) -> UpdatePlan:
    """How a group whose workers were given ``settings``, the actor's, or the critic's config, goes over a batch."""
    own = settings.actor if "actor" in settings else settings
    return UpdatePlan.of(own, int(whole_config(settings).actor_rollout_ref.rollout.n))


def plan_of(data: Any, plan: UpdatePlan, ranks: int = 1) -> UpdatePlan:
    """``plan``, where a ``TensorDict`` does not say otherwise, as the loops of verl 0.9 let it.

    data: with ``mini_batch_size`` (rows of all ranks) or ``num_mini_batch``, ``epochs``, ``seed`` and
    ``dataloader_kwargs["shuffle"]``, or without. ranks: over how many it has been cut.
    """
    if not isinstance(data, TensorDict):
        return plan
    count = get(data, "num_mini_batch")
    rows = get(data, "mini_batch_size", plan.mini_batch_rows if count is None else len(data) * ranks // count)
    shuffle = (get(data, "dataloader_kwargs") or {}).get("shuffle", plan.shuffle)
    return UpdatePlan(int(rows), int(get(data, "epochs", plan.epochs)), shuffle, int(get(data, "seed", plan.seed)))


def infer_dispatch(group: Any, data: Any, **keywords: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One shard a rank; rows that do not divide are filled up with copies, which the group drops from the answer."""
    ((data,), keywords) = materialize_futures(data, **keywords)
    data, count = padded(data, group.world_size)
    _, to_all = dispatch_one_to_all(group, **keywords)
    return (_shards(group, data),), {**to_all, PADDING_SIZE_KEY: count}


def infer_collect(group: Any, answers: Sequence[Any]) -> Any:
    """The answers of all ranks in the order of the batch that was dispatched; a future of them where nobody waits."""
    if isinstance(answers[0], ray.ObjectRef):
        return DataProtoFuture(partial(infer_collect, group), list(answers))
    together = containers.concat(answers)
    return containers.select_rows(together, torch.argsort(_order(group, len(together))))


def update_dispatch(group: Any, data: Any, **keywords: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One shard a rank; a last mini-batch that is too small is filled up with rows of mask 0, which weigh nothing."""
    ((data,), keywords) = materialize_futures(data, **keywords)
    rows = plan_of(data, configured_plan(_settings(group))).mini_batch_rows
    data = with_silent_rows(with_response_mask(data), rows)
    _, to_all = dispatch_one_to_all(group, **keywords)
    return (_shards(group, data, rows),), to_all


def update_collect(group: Any, answers: Sequence[Any]) -> Any:
    """Rank 0's answer, since every rank reports the whole mini-batch; a future of it where nobody waits."""
    if isinstance(answers[0], ray.ObjectRef):
        return DataProtoFuture(partial(update_collect, group), list(answers))
    return answers[0]


def all_rows_to_rank_zero(group: Any, data: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The whole batch to rank 0, ``None`` to the others, which take part in what is collective."""
    return ([data, *[None] * (group.world_size - 1)],), {}


def padded(data: Any, multiple: int) -> tuple[Any, int]:
    """``data`` with copies of its first rows added until their number divides by ``multiple``, and how many."""
    count = -len(data) % multiple
    rows = torch.arange(len(data) + count) % len(data) if count else torch.arange(0)
    return (containers.select_rows(data, rows), count) if count else (data, 0)


def with_response_mask(data: Any) -> Any:
    """``data``, or for a ``DataProto`` without ``response_mask``, as up to verl 0.3, a batch that has it.

    A ``loss_mask``, as of recipes with tools up to 0.4, goes before the attention mask.
    """
    there = set() if not isinstance(data, DataProto) or data.batch is None else set(data.batch.keys())
    if "response_mask" in there or not {"responses", "attention_mask"} <= there:
        return data
    completed = data.with_columns(data.batch.copy(), data.non_tensor_batch, data.meta_info)
    ensure_response_mask(completed, multi_turn=True)
    return completed


def with_silent_rows(data: Any, multiple: int) -> Any:
    """``padded``, the masks of the added rows being 0."""
    filled, count = padded(data, multiple)
    if count == 0:
        return data
    batch = filled if isinstance(filled, TensorDict) else filled.batch
    for name in _MASKS:
        if name in batch.keys():  # noqa: SIM118  iterating a TensorDict gives rows
            mask = batch[name].clone()
            mask[-count:] = 0
            batch[name] = mask
    return filled


INFER = {"dispatch_fn": infer_dispatch, "collect_fn": infer_collect}
UPDATE = {"dispatch_fn": update_dispatch, "collect_fn": update_collect}
GENERATE = {"dispatch_fn": all_rows_to_rank_zero, "collect_fn": update_collect}


def _shards(group: Any, data: Any, mini_batch_rows: int | None = None) -> list[Any]:
    order = _order(group, len(data), mini_batch_rows)
    return list(containers.shard(containers.select_rows(data, order), group.world_size))


def _order(group: Any, rows: int, mini_batch_rows: int | None = None) -> Tensor:
    size = mini_batch_rows or configured_plan(_settings(group)).mini_batch_rows
    return rank_order(rows, size if rows % size == 0 else rows, group.world_size)


def _settings(group: Any) -> DictConfig:
    """The config that the workers of a group were built with, given by name or first."""
    worker = group.ray_cls_with_init
    given = {} if worker is None else {**dict(enumerate(worker.args)), **worker.kwargs}
    settings = given.get("config", given.get(0))
    if settings is None:
        raise WorkerGroupError(
            "this worker group does not know the config of its workers, which says how rows are shared out; build it "
            "with ray_cls_with_init=RayClassWithInitArgs(cls=..., config=config.actor_rollout_ref), attached ones too"
        )
    return settings
