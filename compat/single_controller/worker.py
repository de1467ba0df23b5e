"""``Worker``: the base class of a recipe's own workers; one object is one rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray

from compat.single_controller.decorator import Dispatch, Execute, register
from compat.single_controller.errors import DispatchError, WorkerGroupError
from compat.single_controller.rendezvous import free_port

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass
class DistRankInfo:
    """A rank's place in each parallel dimension."""

    tp_rank: int
    dp_rank: int
    pp_rank: int
    cp_rank: int


@dataclass
class DistGlobalInfo:
    """The size of each parallel dimension."""

    tp_size: int
    dp_size: int
    pp_size: int
    cp_size: int


class WorkerHelper:
    """What a worker can find out about its node."""

    @staticmethod
    def _get_node_ip() -> str:
        return ray.util.get_node_ip_address()

    @staticmethod
    def _get_free_port() -> int:
        return free_port()

    def get_available_master_addr_port(self) -> tuple[str, str]:
        """An address on this node and a port that is free now, both as strings."""
        return self._get_node_ip().strip("[]"), str(self._get_free_port())

    def get_availale_master_addr_port(self) -> tuple[str, str]:
        """``get_available_master_addr_port`` as verl first spelled it."""
        return self.get_available_master_addr_port()


class Worker(WorkerHelper):
    """One rank of a worker group, as ``verl.single_controller.base.Worker``.

    The group sets ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` before the worker is built, so that
    ``torch.distributed.init_process_group`` needs no arguments but the backend. Each rank sees one GPU, or none, so
    ``LOCAL_RANK`` is 0; where the rank stands on its node is ``RAY_LOCAL_RANK``.
    """

    fused_worker_attr_name = "fused_worker_dict"

    def __init__(self, cuda_visible_devices: str | None = None) -> None:
        if cuda_visible_devices is not None:
            os.environ[VISIBLE_DEVICES] = cuda_visible_devices
        _choose_device()
        self._rank = int(_set_by_group("RANK"))
        self._world_size = int(_set_by_group("WORLD_SIZE"))
        self._master_addr, self._master_port = _set_by_group("MASTER_ADDR"), _set_by_group("MASTER_PORT")
        self._local_rank = int(os.environ.setdefault("LOCAL_RANK", "0"))
        self._local_world_size = int(os.environ.setdefault("LOCAL_WORLD_SIZE", "1"))
        # Roles that share a GPU are processes of their own here: a worker finds no other in its process.
        self.fused_worker_dict: dict[str, Any] = {}
        self._dispatch_ranks: dict[str, int] = {}
        self._collects: dict[str, bool] = {}

    @classmethod
    def env_keys(cls) -> list[str]:
        """The environment variables that describe a rank."""
        return [
            "WORLD_SIZE",
            "RANK",
            "LOCAL_WORLD_SIZE",
            "LOCAL_RANK",
            "MASTER_ADDR",
            "MASTER_PORT",
            VISIBLE_DEVICES,
        ]

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._world_size

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    def get_master_addr_port(self) -> tuple[str, str]:
        """Where the ranks of this group meet."""
        return self._master_addr, self._master_port

    def get_cuda_visible_devices(self) -> str:
        """``CUDA_VISIBLE_DEVICES`` of this process, or ``not set``."""
        return os.environ.get(VISIBLE_DEVICES, "not set")

    def get_fused_worker_by_name(self, worker_name: str) -> Any:
        """Another worker of this process: ``None``, see ``fused_worker_dict``."""
        return self.fused_worker_dict.get(worker_name)

    # --- the meshes of make_nd_compute_dataproto_dispatch_fn ----------------------------------------------------------

    def _register_dispatch_collect_info(self, mesh_name: str, dp_rank: int, is_collect: bool) -> None:
        """Say which part of a batch this rank takes on a mesh, and whether its answer is collected."""
        if mesh_name in self._dispatch_ranks:
            raise WorkerGroupError(f"mesh {mesh_name!r} is already registered in {type(self).__name__}")
        self._dispatch_ranks[mesh_name], self._collects[mesh_name] = dp_rank, is_collect

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def _query_dispatch_info(self, mesh_name: str) -> int:
        return self._of_mesh(self._dispatch_ranks, mesh_name)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def _query_collect_info(self, mesh_name: str) -> bool:
        return self.query_collect_info(mesh_name)

    def query_collect_info(self, mesh_name: str) -> bool:
        """Whether this rank's answer is collected on a mesh. ``DispatchError`` names the meshes there are."""
        return self._of_mesh(self._collects, mesh_name)

    def get_dispatch_collect(self) -> dict[str, dict[str, Any]]:
        """What was registered, by mesh."""
        return {"dispatch_dp_rank": self._dispatch_ranks, "collect_dp_rank": self._collects}

    def set_dispatch_collect(
        self, mesh_name: str, dispatch_dp_rank: Mapping[str, int], collect_dp_rank: Mapping[str, bool]
    ) -> None:
        """Register under ``mesh_name`` what another worker registered for its last mesh."""
        self._register_dispatch_collect_info(
            mesh_name, list(dispatch_dp_rank.values())[-1], list(collect_dp_rank.values())[-1]
        )

    def _of_mesh(self, values: Mapping[str, Any], mesh_name: str) -> Any:
        if mesh_name not in values:
            raise DispatchError(
                f"{type(self).__name__} has no mesh {mesh_name!r}, only {sorted(values)}; call "
                "_register_dispatch_collect_info before a method that is dispatched over it"
            )
        return values[mesh_name]

    # --- functions that the driver sends ------------------------------------------------------------------------------

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def execute_with_func_generator(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run ``func(worker, part of each argument, ...)`` on every rank."""
        return func(self, *args, **kwargs)

    @register(dispatch_mode=Dispatch.ALL_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def execute_func_rank_zero(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run ``func(*args, **kwargs)`` in the process of rank 0."""
        return func(*args, **kwargs)


def _set_by_group(name: str) -> str:
    if name not in os.environ:
        raise WorkerGroupError(
            f"the environment variable {name} is not set; a RayWorkerGroup sets it in each rank's process, so build "
            "the worker through one, or set it as torchrun does"
        )
    return os.environ[name]


def _choose_device() -> None:
    """Where Ray leaves all GPUs visible to every actor, ``LOCAL_RANK`` is the one that Ray gave to this."""
    if os.environ.get("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES") and (given := ray.get_gpu_ids()):
        os.environ["LOCAL_RANK"] = str(given[0])
