"""Resource pools: which bundles of CPUs and GPUs the ranks of worker groups stand in.

A pool reserves one bundle a rank. Rank r of every group in the pool, and whatever else is put beside it, shares bundle
r and its GPU, as the roles that verl fuses into one process do. Actors ask for next to nothing of their bundle, so that
it holds any number of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any
from uuid import uuid4

import ray
from ray.util.placement_group import PlacementGroup

from compat.single_controller.errors import ResourcePoolError
from compat.single_controller.rendezvous import node_of
from runtime.cluster import Placement, reserve

BUNDLE_CPUS = 1.0
"""Logical CPUs of a rank's bundle, whatever stands in it."""

ACTOR_SHARE = 0.01
"""Of a bundle's CPU, and of its GPU where it has one."""

SCHEDULE_TIMEOUT_S = 60.0


class ResourcePool:
    """How many ranks stand on each node."""

    def __init__(
        self,
        process_on_nodes: Sequence[int] | None = None,
        max_colocate_count: int = 10,
        n_gpus_per_node: int = 8,
    ) -> None:
        self._store = list(process_on_nodes or [])
        self.max_colocate_count = max_colocate_count
        self.n_gpus_per_node = n_gpus_per_node

    def add_node(self, process_count: int) -> None:
        """One more node with ``process_count`` ranks."""
        self._store.append(process_count)

    @property
    def world_size(self) -> int:
        """Ranks on all nodes."""
        return sum(self._store)

    def __call__(self) -> list[int]:
        """Ranks on each node."""
        return self._store

    @property
    def store(self) -> list[int]:
        """Ranks on each node."""
        return self._store

    def local_world_size_list(self) -> list[int]:
        """For each rank, how many there are on its node."""
        return [size for size in self._store for _ in range(size)]

    def local_rank_list(self) -> list[int]:
        """For each rank, its number on its node."""
        return [local for size in self._store for local in range(size)]


class RayResourcePool(ResourcePool):
    """A pool of Ray bundles, reserved when the first group asks for them.

    On a cluster without GPUs the ranks are CPU ranks whatever ``use_gpu`` says. ``max_colocate_count`` is kept for
    recipes that read it: a bundle holds any number of actors. ``timeout_s`` may be set before the reservation.
    """

    start_bundle_index = 0
    """Where rank 0 stands among the bundles of all placement groups."""

    def __init__(
        self,
        process_on_nodes: Sequence[int] | None = None,
        use_gpu: bool = True,
        name_prefix: str | None = None,
        max_colocate_count: int = 10,
        detached: bool = False,
        accelerator_type: str | None = None,
    ) -> None:
        super().__init__(process_on_nodes, max_colocate_count)
        self.use_gpu, self.detached, self.accelerator_type = use_gpu, detached, accelerator_type
        self.name_prefix = uuid4().hex[:6] if name_prefix is None else name_prefix
        self.timeout_s = SCHEDULE_TIMEOUT_S
        self.pgs: list[PlacementGroup] | None = None

    def get_placement_groups(self, strategy: str = "STRICT_PACK", device_name: str = "cuda") -> list[PlacementGroup]:
        """One placement group a node, reserved at the first call, by the address of their nodes.

        ``ResourceError`` after ``timeout_s``, or at once when the cluster does not have as much, names what is short.
        """
        if self.pgs is None:
            bundle = self._bundle(device_name)
            check_total({name: amount * self.world_size for name, amount in bundle.items()}, f"pool {self.name_prefix}")
            self.pgs = sort_placement_group_by_node_ip(self._reserve(bundle, strategy))
        return self.pgs

    def _reserve(self, bundle: dict[str, float], strategy: str) -> list[PlacementGroup]:
        lifetime = "detached" if self.detached else None
        placements: list[Placement] = []
        try:
            for count in self._store:
                placements.append(reserve([bundle] * count, self.timeout_s, strategy, lifetime))
        except BaseException:
            for placement in placements:
                placement.release()
            raise
        return [placement.group for placement in placements]

    def _bundle(self, device_name: str) -> dict[str, float]:
        on_gpu = self.use_gpu and device_name != "cpu" and ray.cluster_resources().get("GPU", 0) > 0
        accelerator = {self.accelerator_type: 1e-4} if self.accelerator_type is not None else {}
        return {"CPU": BUNDLE_CPUS} | ({"GPU": 1.0, **accelerator} if on_gpu else {})

    def local_ranks(self) -> list[tuple[int, int]]:
        """Of each rank of this pool, its number on its node and how many there are on it."""
        everywhere = list(zip(self.local_rank_list(), self.local_world_size_list(), strict=True))
        return everywhere[self.start_bundle_index : self.start_bundle_index + self.world_size]

    def locate(self, rank: int) -> tuple[PlacementGroup, int]:
        """The placement group in which a rank stands, and its bundle."""
        groups = self.get_placement_groups()
        position = self.start_bundle_index + rank
        for group, end in zip(groups, accumulate(group.bundle_count for group in groups), strict=True):
            if position < end:
                return group, position - end + group.bundle_count
        raise ResourcePoolError(f"rank {rank} is outside pool {self.name_prefix} of {self.world_size} ranks")

    def options(self, rank: int, use_gpu: bool = True) -> dict[str, Any]:
        """The Ray options that put one more actor beside a rank, on its GPU where it has one and ``use_gpu``."""
        group, bundle = self.locate(rank)
        on_gpu = use_gpu and group.bundle_specs[bundle].get("GPU", 0) > 0
        return Placement(group).options(bundle, ACTOR_SHARE, ACTOR_SHARE if on_gpu else 0)

    def release(self) -> None:
        """Give the bundles back; every actor in them ends."""
        for group in self.pgs or ():
            Placement(group).release()
        self.pgs = None


class SubRayResourcePool(RayResourcePool):
    """Neighbouring ranks of another pool."""

    def __init__(
        self,
        placement_groups: list[PlacementGroup],
        start_bundle_index: int,
        subgroup_world_size: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pgs = placement_groups
        self.start_bundle_index = start_bundle_index
        self.subgroup_world_size = subgroup_world_size

    @property
    def world_size(self) -> int:
        """Ranks of this part."""
        return self.subgroup_world_size


@dataclass
class ResourcePoolManager:
    """The pools of a run and the role that each serves.

    resource_pool_spec: ranks on each node, by pool. mapping: pool of each role.
    """

    resource_pool_spec: dict[str, list[int]]
    mapping: Mapping[Any, str]
    max_colocate_count: int = 3
    resource_pool_dict: dict[str, RayResourcePool] = field(default_factory=dict)

    def create_resource_pool(self) -> None:
        """Make the pools; ``ResourcePoolError`` when the cluster can never hold them."""
        self.resource_pool_dict.update(
            {
                name: RayResourcePool(process_on_nodes, name_prefix=name, max_colocate_count=self.max_colocate_count)
                for name, process_on_nodes in self.resource_pool_spec.items()
            }
        )
        self._check_resource_available()

    def get_resource_pool(self, role: Any) -> RayResourcePool:
        """The pool of a role."""
        if role not in self.mapping or self.mapping[role] not in self.resource_pool_dict:
            pools = {str(known): pool for known, pool in self.mapping.items()}
            raise ResourcePoolError(
                f"{role} has no resource pool: the mapping is {pools} and the pools are "
                f"{sorted(self.resource_pool_dict)}; map the role, and call create_resource_pool first"
            )
        return self.resource_pool_dict[self.mapping[role]]

    def get_n_gpus(self) -> int:
        """Ranks of all pools."""
        return sum(sum(process_on_nodes) for process_on_nodes in self.resource_pool_spec.values())

    def _check_resource_available(self) -> None:
        wanted: dict[str, float] = {"CPU": BUNDLE_CPUS * self.get_n_gpus()}
        if ray.cluster_resources().get("GPU", 0):
            wanted["GPU"] = self.get_n_gpus()
        check_total(wanted, "the resource pools")


def check_total(wanted: Mapping[str, float], what: str) -> None:
    """``ResourcePoolError`` when the whole cluster has less than ``wanted``, even when nothing else runs."""
    total = ray.cluster_resources()
    short = {name: amount for name, amount in wanted.items() if amount > total.get(name, 0)}
    if short:
        amounts = ", ".join(f"{amount:g} {name} (it has {total.get(name, 0):g})" for name, amount in short.items())
        raise ResourcePoolError(
            f"{what} cannot be placed: they need {amounts}. Lower trainer.n_gpus_per_node or trainer.nnodes, or give "
            "Ray more (ray_kwargs.ray_init.num_cpus for a local one; logical CPUs may exceed cores)"
        )


def sort_placement_group_by_node_ip(pgs: Sequence[PlacementGroup]) -> list[PlacementGroup]:
    """Placement groups by the address of the node of their first bundle, so that ranks stay where they were."""
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    return sorted(pgs, key=lambda group: addresses[node_of(group, 0)])


def split_resource_pool(resource_pool: RayResourcePool, split_size: int | Sequence[int]) -> list[SubRayResourcePool]:
    """Cut a pool, or a part of one, into parts of ``split_size`` ranks, or of the sizes in it."""
    size = resource_pool.world_size
    sizes = [split_size] * (size // split_size) if isinstance(split_size, int) else list(split_size)
    if sum(sizes) != size:
        raise ResourcePoolError(f"{size} ranks of pool {resource_pool.name_prefix} do not split into {split_size}")
    starts = accumulate(sizes[:-1], initial=resource_pool.start_bundle_index)
    return [
        SubRayResourcePool(
            process_on_nodes=resource_pool.store,
            use_gpu=resource_pool.use_gpu,
            name_prefix=f"{resource_pool.name_prefix}_split_{number}",
            max_colocate_count=resource_pool.max_colocate_count,
            placement_groups=resource_pool.get_placement_groups(),
            start_bundle_index=start,
            subgroup_world_size=part,
        )
        for number, (start, part) in enumerate(zip(starts, sizes, strict=True))
    ]


def merge_resource_pool(rp1: RayResourcePool, rp2: RayResourcePool) -> RayResourcePool:
    """One pool of the ranks of both, those of ``rp1`` first."""
    for name in ("use_gpu", "max_colocate_count", "n_gpus_per_node", "detached"):
        if getattr(rp1, name) != getattr(rp2, name):
            raise ResourcePoolError(
                f"pools {rp1.name_prefix} and {rp2.name_prefix} differ in {name}: {getattr(rp1, name)} and "
                f"{getattr(rp2, name)}; only equal ones can be merged"
            )
    merged = RayResourcePool(
        [*rp1.store, *rp2.store],
        rp1.use_gpu,
        f"{rp1.name_prefix}_{rp2.name_prefix}",
        rp1.max_colocate_count,
        rp1.detached,
    )
    merged.pgs = [*rp1.get_placement_groups(), *rp2.get_placement_groups()]
    return merged
