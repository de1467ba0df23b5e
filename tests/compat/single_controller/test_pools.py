"""What a resource pool knows without Ray."""

import pytest

from compat.single_controller.errors import WorkerGroupError
from compat.single_controller.pools import RayResourcePool, ResourcePool, ResourcePoolManager, SubRayResourcePool
from compat.single_controller.rendezvous import free_port
from compat.single_controller.roles import Role


def test_ranks_of_nodes_of_different_size():
    pool = ResourcePool([2, 1], max_colocate_count=1)
    pool.add_node(2)
    assert (pool.world_size, pool(), pool.store) == (5, [2, 1, 2], [2, 1, 2])
    assert pool.local_rank_list() == [0, 1, 0, 0, 1]
    assert pool.local_world_size_list() == [2, 2, 1, 2, 2]


def test_a_part_of_a_pool_counts_ranks_on_the_node_as_the_pool_does():
    part = SubRayResourcePool(
        placement_groups=[], start_bundle_index=1, subgroup_world_size=2, process_on_nodes=[2, 2], name_prefix="part"
    )
    assert (part.world_size, part.local_ranks()) == (2, [(1, 2), (0, 2)])


def test_pools_of_their_own_have_names_of_their_own():
    assert len({RayResourcePool([1]).name_prefix for _ in range(50)}) == 50


def test_a_manager_counts_the_ranks_of_all_pools():
    manager = ResourcePoolManager({"a": [4, 4], "b": [2]}, {Role.ActorRollout: "a", Role.Critic: "b"})
    assert manager.get_n_gpus() == 10


def test_a_taken_port_is_passed_over():
    import socket

    with socket.socket() as holder:
        holder.bind(("", 0))
        taken = holder.getsockname()[1]
        assert free_port([taken, 0]) != taken
        with pytest.raises(WorkerGroupError, match="no port is free in"):
            free_port([taken])
