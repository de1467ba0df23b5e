"""Where the ranks of a group meet."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import ray
from ray.util import placement_group_table
from ray.util.placement_group import PlacementGroup

from compat.single_controller.errors import WorkerGroupError
from runtime.cluster import Placement


def free_port(candidates: Sequence[int] = (0,)) -> int:
    """The first of ``candidates`` that is free on this node; 0 stands for any port."""
    for port in candidates:
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise WorkerGroupError(f"no port is free in {candidates}; widen master_port_range")


def master_address(group: PlacementGroup, bundle: int, port_range: Sequence[int] | None = None) -> tuple[str, str]:
    """Address and free port, as strings, of the node that holds a bundle.

    port_range: first port and the one after the last to try; any port when ``None``.
    """
    candidates = (0,) if port_range is None else range(*port_range)
    if node_of(group, bundle) == ray.get_runtime_context().get_node_id():
        return _address(candidates)
    remote = ray.remote(_address).options(**Placement(group).options(bundle, cpus=0))
    return ray.get(remote.remote(candidates))


def _address(candidates: Sequence[int]) -> tuple[str, str]:
    return ray.util.get_node_ip_address().strip("[]"), str(free_port(candidates))


def node_of(group: PlacementGroup, bundle: int) -> str:
    """The id of the node that holds a bundle."""
    return placement_group_table(group)["bundles_to_node_id"][bundle]
