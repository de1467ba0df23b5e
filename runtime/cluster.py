"""Ray: a local one by default, or the cluster that ``ray_kwargs.ray_init.address`` names."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from runtime.environment import WORKER_ENV, set_worker_env
from runtime.errors import ResourceError

MIN_LOGICAL_CPUS = 16
"""TransferQueue takes one logical CPU and one more a storage unit, and waits for ever when there are fewer."""


def start_ray(config: DictConfig) -> None:
    """Start or join Ray once a process; keys of ``ray_kwargs.ray_init`` are passed on to ``ray.init``."""
    if ray.is_initialized():
        return
    set_worker_env()
    options: dict[str, Any] = OmegaConf.to_container(config.ray_kwargs.get("ray_init") or {}, resolve=True)  # type: ignore[assignment]
    options = {name: value for name, value in options.items() if value is not None}
    if "address" in options:
        options.pop("num_cpus", None)
        runtime_env = options.setdefault("runtime_env", {})
        runtime_env["env_vars"] = {**WORKER_ENV, **runtime_env.get("env_vars", {})}
    else:
        options.setdefault("num_cpus", max(MIN_LOGICAL_CPUS, os.cpu_count() or 1))
        options.setdefault("include_dashboard", False)
    ray.init(ignore_reinit_error=True, **options)


@dataclass(frozen=True)
class Placement:
    """Reserved bundles of resources, each on one node."""

    group: PlacementGroup

    def options(self, bundle: int, cpus: float, gpus: float = 0) -> dict[str, Any]:
        """The Ray options that put an actor into ``bundle`` with a part of its resources."""
        strategy = PlacementGroupSchedulingStrategy(placement_group=self.group, placement_group_bundle_index=bundle)
        return {"num_cpus": cpus, "num_gpus": gpus, "scheduling_strategy": strategy}

    def release(self) -> None:
        """Give the bundles back; actors in them end."""
        remove_placement_group(self.group)


def reserve(
    bundles: list[dict[str, float]], timeout_s: float, strategy: str = "PACK", lifetime: str | None = None
) -> Placement:
    """Reserve ``bundles`` of resources; ``ResourceError`` within ``timeout_s`` names what is short.

    strategy, lifetime: Ray's own of a placement group; ``detached`` ones outlive the driver.
    """
    group = placement_group(bundles, strategy=strategy, lifetime=lifetime)
    if not group.wait(timeout_seconds=timeout_s):
        remove_placement_group(group)
        wanted = {
            name: sum(bundle.get(name, 0) for bundle in bundles)
            for name in {key for bundle in bundles for key in bundle}
        }
        available = ray.available_resources()
        short = {
            name: f"{amount:g} wanted, {available.get(name, 0):g} free"
            for name, amount in wanted.items()
            if amount > available.get(name, 0)
        } or wanted
        raise ResourceError(
            f"Ray could not place the actors within {timeout_s:g} s: {short}. Free the resources, lower "
            "trainer.n_gpus_per_node or trainer.nnodes, or give Ray more (runtime.num_cpus for a local one)."
        )
    return Placement(group)


def await_cpus(count: float, timeout_s: float, what: str) -> None:
    """Wait until ``count`` logical CPUs are free; ``ResourceError`` naming ``what`` after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while (free := ray.available_resources().get("CPU", 0)) < count:
        total = ray.cluster_resources().get("CPU", 0)
        if total < count or time.monotonic() > deadline:
            raise ResourceError(
                f"{what} needs {count:g} logical CPUs, and {free:g} of Ray's {total:g} are free; raise "
                "runtime.num_cpus (logical CPUs may exceed cores), or free some"
            )
        time.sleep(0.2)
