"""How the arguments of a worker-group method are cut among ranks, and how their answers are joined.

A dispatch function gets the worker group and the call's arguments, and returns positional and keyword arguments in
which every value is a list with one entry a rank. A collect function gets the group and the list of answers. The
meaning is that of ``verl.single_controller.base.decorator``; what differs: an argument is never changed in place,
auto-padding works for every mode that cuts a batch and for answers that are not fetched yet, and ``TensorDict`` and
lists of B items are cut like a ``DataProto``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import ray

from compat.futures import DataProtoFuture
from compat.single_controller import shards
from compat.single_controller.errors import DispatchError, DispatchModeError

PADDING_SIZE_KEY = "_padding_size_key_x123d"
"""The keyword argument, taken out again before the call, under which a dispatch function says which rows it added."""

Arguments = tuple[Sequence[Any], dict[str, Any]]


def dispatch_one_to_all(worker_group: Any, *args: Any, **kwargs: Any) -> Arguments:
    """The same arguments for every rank."""
    size = worker_group.world_size
    return tuple([arg] * size for arg in args), {key: [value] * size for key, value in kwargs.items()}


def dispatch_all_to_all(worker_group: Any, *args: Any, **kwargs: Any) -> Arguments:  # noqa: ARG001
    """Arguments as they are; lists with one entry a rank go one to each rank."""
    return args, kwargs


def collect_all_to_all(worker_group: Any, output: Any) -> Any:  # noqa: ARG001
    """Answers as they are, by rank."""
    return output


def dummy_direct_rollout_call(worker_group: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001
    """Methods that only an inference engine calls; ``DispatchModeError`` in the driver."""
    raise DispatchModeError(
        "Direct rollout call is forbidden: the inference engine calls this method itself; call another one, or "
        "register it with Dispatch.ONE_TO_ALL"
    )


def dispatch_dp_compute(worker_group: Any, *args: Any, **kwargs: Any) -> Arguments:
    """Every argument is already a list or tuple with one entry a rank."""
    named = {**{f"argument {number}": arg for number, arg in enumerate(args)}, **kwargs}
    for name, value in named.items():
        if not isinstance(value, list | tuple) or len(value) != worker_group.world_size:
            amount = f"{len(value)} entries" if isinstance(value, list | tuple) else f"a {type(value).__name__}"
            raise DispatchError(f"{name} has {amount}; Dispatch.DP_COMPUTE takes lists of {worker_group.world_size}")
    return tuple(list(arg) for arg in args), {key: list(value) for key, value in kwargs.items()}


def collect_dp_compute(worker_group: Any, output: Any) -> Any:
    """The answers of all ranks, as a list."""
    if len(output) != worker_group.world_size:
        raise DispatchError(f"{len(output)} answers came from {worker_group.world_size} ranks")
    return output


def split_arguments(chunks: int, *args: Any, **kwargs: Any) -> Arguments:
    """Cut every argument into ``chunks`` parts of equal size, as verl's ``_split_args_kwargs_data_proto``."""
    return [shards.split(arg, chunks) for arg in args], {
        key: shards.split(value, chunks) for key, value in kwargs.items()
    }


def split_arguments_with_padding(chunks: int, *args: Any, **kwargs: Any) -> Arguments:
    """``split_arguments`` in which batches with auto-padding on are first filled up to a multiple of ``chunks``.

    The ``shards.Padding`` stands under ``PADDING_SIZE_KEY``. Padded batches must have one length, or ``DispatchError``
    names the lengths.
    """
    lengths = {len(value) for value in (*args, *kwargs.values()) if shards.pads(value)}
    if len(lengths) > 1:
        raise DispatchError(
            f"batches of one call have {sorted(lengths)} rows; to be padded they must have the same number"
        )
    if not lengths:
        return split_arguments(chunks, *args, **kwargs)
    length = lengths.pop()
    padding = shards.Padding(-length % chunks, length + -length % chunks)

    def filled(value: Any) -> Any:
        return shards.pad(value, padding) if shards.pads(value) else value

    parts, named = split_arguments(chunks, *map(filled, args), **{key: filled(value) for key, value in kwargs.items()})
    return parts, {**named, PADDING_SIZE_KEY: padding}


def dispatch_dp_compute_data_proto(worker_group: Any, *args: Any, **kwargs: Any) -> Arguments:
    """One equal part of every argument a rank."""
    return split_arguments_with_padding(worker_group.world_size, *args, **kwargs)


def dispatch_dp_compute_data_proto_with_func(worker_group: Any, *args: Any, **kwargs: Any) -> Arguments:
    """The first argument is a function, which every rank gets whole."""
    if not args or not isinstance(args[0], FunctionType):
        raise DispatchError("Dispatch.DP_COMPUTE_PROTO_WITH_FUNC takes a function as its first argument")
    parts, named = split_arguments_with_padding(worker_group.world_size, *args[1:], **kwargs)
    return [[args[0]] * worker_group.world_size, *parts], named


def collect_dp_compute_data_proto(worker_group: Any, output: Any) -> Any:
    """The answers of all ranks, joined."""
    return shards.join(collect_dp_compute(worker_group, output))


def dispatch_nd_compute(
    dp_rank_mapping: Sequence[int], dp_size: int, worker_group: Any, *args: Any, **kwargs: Any
) -> Arguments:
    """Give rank r the part of data-parallel rank ``dp_rank_mapping[r]``; every argument is a list of ``dp_size``."""

    def by_rank(parts: Any) -> list[Any]:
        if not isinstance(parts, list | tuple) or len(parts) != dp_size:
            raise DispatchError(f"an argument has {len(parts)} parts for {dp_size} data-parallel ranks")
        # A part for several ranks is stored once.
        shared = parts if dp_size == worker_group.world_size else [ray.put(part) for part in parts]
        return [shared[dp_rank_mapping[rank]] for rank in range(worker_group.world_size)]

    padding = {PADDING_SIZE_KEY: kwargs.pop(PADDING_SIZE_KEY)} if PADDING_SIZE_KEY in kwargs else {}
    return tuple(map(by_rank, args)), {key: by_rank(parts) for key, parts in kwargs.items()} | padding


def collect_nd_compute(collect_mask: Sequence[bool], worker_group: Any, output: Any) -> list[Any]:
    """The answers of the ranks that ``collect_mask`` marks."""
    answers = collect_dp_compute(worker_group, output)
    return [answer for answer, collected in zip(answers, collect_mask, strict=True) if collected]


def dispatch_nd_compute_dataproto(
    dp_rank_mapping: Sequence[int], dp_size: int, worker_group: Any, *args: Any, **kwargs: Any
) -> Arguments:
    """Cut every argument into one part a data-parallel rank, and give each rank its part."""
    parts, named = split_arguments_with_padding(dp_size, *args, **kwargs)
    return dispatch_nd_compute(dp_rank_mapping, dp_size, worker_group, *parts, **named)


def collect_nd_compute_dataproto(collect_mask: Sequence[bool], worker_group: Any, output: Any) -> Any:
    """The answers of the marked ranks, joined."""
    return shards.join(collect_nd_compute(collect_mask, worker_group, output))


def dispatch_lazy_compute_data_proto(mesh_name: str, worker_group: Any, *args: Any, **kwargs: Any) -> Arguments:
    """``dispatch_nd_compute_dataproto`` on the mesh that the workers registered under ``mesh_name``; asked once."""
    mapping = _asked(worker_group._dispatch_info, mesh_name, worker_group._query_dispatch_info)
    return dispatch_nd_compute_dataproto(mapping, max(mapping) + 1, worker_group, *args, **kwargs)


def collect_lazy_compute_data_proto(mesh_name: str, worker_group: Any, output: Any) -> Any:
    """``collect_nd_compute_dataproto`` on the mesh that the workers registered under ``mesh_name``; asked once."""
    mask = _asked(worker_group._collect_info, mesh_name, worker_group._query_collect_info)
    return collect_nd_compute_dataproto(mask, worker_group, output)


def _asked(known: dict[str, list[Any]], mesh_name: str, ask: Callable[[str], list[Any]]) -> list[Any]:
    if mesh_name not in known:
        known[mesh_name] = ask(mesh_name)
    return known[mesh_name]


def make_nd_compute_dataproto_dispatch_fn(mesh_name: str) -> dict[str, Callable[..., Any]]:
    """A dispatch mode over the mesh that workers register with ``Worker._register_dispatch_collect_info``."""
    return {
        "dispatch_fn": partial(dispatch_lazy_compute_data_proto, mesh_name),
        "collect_fn": partial(collect_lazy_compute_data_proto, mesh_name),
    }


def materialize_futures(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Fetch what a ``DataProtoFuture`` among the arguments stands for."""
    return tuple(map(_fetched, args)), {key: _fetched(value) for key, value in kwargs.items()}


def _fetched(value: Any) -> Any:
    return value.get() if isinstance(value, DataProtoFuture) else value
