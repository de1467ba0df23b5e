"""Worker groups on a real Ray: a recipe's own workers, two roles in one pool, and what is said when they fail.

Worker classes are made inside a function, so that they travel to the workers by value, as those of a recipe's script.
By value, cloudpickle takes ``self.config`` beside an import of ``torch.distributed`` for the module
``torch.distributed.config``, which it cannot pickle: hence ``self.settings``.
"""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import ray
import torch

from compat.futures import DataProtoFuture
from compat.protocol import DataProto
from compat.single_controller import pools
from compat.single_controller.actors import (
    RayClassWithInitArgs,
    create_colocated_worker_cls,
    create_colocated_worker_cls_fused,
)
from compat.single_controller.decorator import Dispatch, Execute, register
from compat.single_controller.dispatch import make_nd_compute_dataproto_dispatch_fn
from compat.single_controller.errors import DispatchError, UnregisteredMethodError, WorkerGroupError
from compat.single_controller.pools import (
    RayResourcePool,
    ResourcePoolManager,
    merge_resource_pool,
    split_resource_pool,
)
from compat.single_controller.ray_worker_group import RayWorkerGroup
from compat.single_controller.roles import Role
from compat.single_controller.worker import Worker
from runtime.errors import ConfigError, ResourceError, RewardError, VerliftError
from runtime.workers.group import WorkerGroup as RuntimeWorkerGroup

pytestmark = pytest.mark.ray


def worker_classes() -> SimpleNamespace:
    """Workers as recipes define them."""

    class ActorWorker(Worker):
        def __init__(self, config, role="actor"):
            super().__init__()
            self.settings, self.role = config, role

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def init_model(self):
            """Meet the other ranks with nothing but the environment."""
            import torch.distributed as dist

            dist.init_process_group("gloo")
            ranks = torch.zeros(self.world_size)
            ranks[self.rank] = int(os.environ["RANK"]) + 1
            dist.all_reduce(ranks)
            self._register_dispatch_collect_info("mesh", dp_rank=0, is_collect=self.rank == 0)
            return {
                "role": self.role,
                "config": self.settings,
                "ranks": ranks.tolist(),
                "local": os.environ["LOCAL_RANK"],
            }

        @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
        def compute_log_prob(self, data):
            return DataProto.from_dict(
                {"old_log_probs": data.batch["x"] * 2, "rank": torch.full((len(data),), self.rank)}
            )

        @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
        def compute_later(self, data):
            return self.compute_log_prob(data)

        @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("mesh"))
        def compute_on_mesh(self, data):
            return self.compute_log_prob(data)

        @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("absent"))
        def compute_on_absent_mesh(self, data):
            return data

        @register(dispatch_mode=Dispatch.ALL_TO_ALL, execute_mode=Execute.RANK_ZERO)
        def save_checkpoint(self, path):
            return path, self.rank

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def fail(self, error):
            raise error

        @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
        def fail_later(self, data):
            raise RewardError(f"rank {self.rank} has {len(data)} bad rows")

    class CriticWorker(Worker):
        @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
        def compute_values(self, data):
            return DataProto.from_dict({"values": data.batch["old_log_probs"] + 1})

        @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
        def update_critic(self, data):
            return {"rank": self.rank, "rows": len(data)}

    class BrokenWorker(Worker):
        def __init__(self, error):
            super().__init__()
            raise error

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def init_model(self):
            return None

    class AsyncWorker:
        """No ``Worker``, and its methods are coroutines."""

        def __init__(self):
            self.rank = int(os.environ["RANK"])

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        async def generate(self, prompt):
            return f"{prompt} {self.rank} {os.environ.get('RECIPE_SETTING')}"

    return SimpleNamespace(Actor=ActorWorker, Critic=CriticWorker, Broken=BrokenWorker, Async=AsyncWorker)


CLASSES = worker_classes()


def batch(rows: int) -> DataProto:
    return DataProto.from_dict({"x": torch.arange(float(rows))})


def init_workers(manager, role_worker_mapping):
    """``RayPPOTrainer.init_workers`` as recipes of verl 0.3 to 0.8 write it."""
    manager.create_resource_pool()
    resource_pool_to_cls = {pool: {} for pool in manager.resource_pool_dict.values()}
    pool = manager.get_resource_pool(Role.ActorRollout)
    resource_pool_to_cls[pool]["actor_rollout"] = RayClassWithInitArgs(
        cls=role_worker_mapping[Role.ActorRollout], config={"lr": 1}, role="actor_rollout"
    )
    pool = manager.get_resource_pool(Role.Critic)
    resource_pool_to_cls[pool]["critic"] = RayClassWithInitArgs(cls=role_worker_mapping[Role.Critic])
    all_wg = {}
    for pool, class_dict in resource_pool_to_cls.items():
        worker_dict_cls = create_colocated_worker_cls(class_dict=class_dict)
        wg_dict = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=worker_dict_cls, device_name="cpu")
        all_wg.update(wg_dict.spawn(prefix_set=class_dict.keys()))
        all_wg["both"] = wg_dict
    return all_wg


@pytest.fixture(scope="module")
def pool(cluster):  # noqa: ARG001
    """Two ranks for the groups of this file."""
    pool = RayResourcePool([2], name_prefix="tests")
    yield pool
    pool.release()


@pytest.fixture(scope="module")
def rank(pool):
    """A pool of one rank, for groups whose number of ranks does not matter."""
    return split_resource_pool(pool, 1)[1]


@pytest.fixture(scope="module")
def groups(cluster):  # noqa: ARG001
    """The groups of two roles that share a pool."""
    manager = ResourcePoolManager({"global_pool": [2]}, {Role.ActorRollout: "global_pool", Role.Critic: "global_pool"})
    mapping = {Role.ActorRollout: ray.remote(CLASSES.Actor), Role.Critic: ray.remote(CLASSES.Critic)}
    groups = init_workers(manager, mapping)
    groups["met"] = groups["actor_rollout"].init_model()
    groups["pool"] = manager.get_resource_pool(Role.Critic)
    yield groups
    groups["pool"].release()


def test_ranks_meet_by_the_environment_and_know_their_role(groups):
    expected = {"role": "actor_rollout", "config": {"lr": 1}, "ranks": [1.0, 2.0], "local": "0"}
    assert groups["met"] == [expected, expected]
    assert groups["actor_rollout"].world_size == 2
    names = groups["actor_rollout"].worker_names
    assert [name.split("_", 1)[1] for name in names] == ["rollout_ActorWorker_0:0", "rollout_ActorWorker_0:1"]


def test_rows_are_cut_by_rank_and_come_back_in_order(groups):
    answer = groups["actor_rollout"].compute_log_prob(batch(4))
    assert answer.batch["old_log_probs"].tolist() == [0, 2, 4, 6]
    assert answer.batch["rank"].tolist() == [0, 0, 1, 1]
    assert groups["critic"].update_critic(answer) == [{"rank": 0, "rows": 2}, {"rank": 1, "rows": 2}]
    assert groups["actor_rollout"].save_checkpoint("here") == ("here", 0)


def test_a_call_that_is_not_fetched_feeds_the_next(groups):
    later = groups["actor_rollout"].compute_later(batch(4))
    assert isinstance(later, DataProtoFuture)
    assert groups["critic"].compute_values(later).batch["values"].tolist() == [1, 3, 5, 7]
    padded = DataProto.from_dict({"x": torch.arange(3.0)}, auto_padding=True)
    assert groups["actor_rollout"].compute_later(padded).get().batch["old_log_probs"].tolist() == [0, 2, 4]


def test_a_mesh_registered_by_the_workers(groups):
    answer = groups["actor_rollout"].compute_on_mesh(batch(3))
    assert answer.batch["old_log_probs"].tolist() == [0, 2, 4], "both ranks computed all rows, rank 0 answered"
    assert answer.batch["rank"].tolist() == [0, 0, 0]
    with pytest.raises(DispatchError, match=r"ActorWorker has no mesh 'absent', only \['mesh'\]"):
        groups["actor_rollout"].compute_on_absent_mesh(batch(3))


def test_functions_are_sent_to_the_ranks(groups):
    actor = groups["actor_rollout"]
    assert actor.execute_func_rank_zero(lambda a, b: a + b, 1, 2) == 3

    def shifted(worker, data):
        return DataProto.from_dict({"x": data.batch["x"] + 10 * worker.rank})

    assert actor.execute_with_func_generator(shifted, batch(4)).batch["x"].tolist() == [0, 1, 12, 13]


def test_any_method_can_be_executed_by_name(groups):
    actor = groups["actor_rollout"]
    assert actor.execute_all_sync("get_cuda_visible_devices") == [os.environ.get("CUDA_VISIBLE_DEVICES", "not set")] * 2
    assert actor.execute_rank_zero_sync("get_master_addr_port") == (actor.master_address, actor.master_port)
    assert actor.execute_all_sync("save_checkpoint", ["a", "b"]) == [("a", 0), ("b", 1)]
    assert ray.get(actor.execute_all("save_checkpoint", ["a"])) == [(["a"], 0), (["a"], 1)]
    assert ray.get(actor.execute_rank_zero("save_checkpoint", path="a")) == ("a", 0)
    with pytest.raises(UnregisteredMethodError, match="ActorWorker has no method 'absent'"):
        actor.execute_all_sync("absent")


def test_the_group_of_a_pool_offers_both_roles(groups):
    both = groups["both"]
    assert both.actor_rollout_compute_log_prob(batch(2)).batch["old_log_probs"].tolist() == [0, 2]
    assert both.critic_update_critic(batch(2))[1] == {"rank": 1, "rows": 1}
    both.fuse(["critic"])
    assert both.critic is groups["critic"]
    with pytest.raises(WorkerGroupError, match=r"no roles \['ref'\], only \['actor_rollout', 'critic'\]"):
        both.spawn({"ref"})
    with pytest.raises(
        AttributeError, match="CriticWorker has no method 'compute_log_prob'; it registered compute_val"
    ):
        groups["critic"].compute_log_prob(batch(2))


def test_rank_r_of_every_role_stands_in_bundle_r_with_room_for_more(groups):
    @ray.remote
    class Beside:
        def bundle(self):
            return (
                ray.get_runtime_context().get_placement_group_id(),
                ray.get_runtime_context().get_assigned_resources(),
            )

    beside = Beside.options(**groups["pool"].options(0)).remote()
    group_id, resources = ray.get(beside.bundle.remote())
    assert group_id == groups["pool"].pgs[0].id.hex()
    assert resources == {"CPU": pools.ACTOR_SHARE}


def test_groups_attach_to_actors_that_run(groups):
    actor = groups["actor_rollout"]
    for handles in ({"worker_handles": actor.workers}, {"worker_names": actor.worker_names}):
        attached = RayWorkerGroup.from_detached(ray_cls_with_init=RayClassWithInitArgs(cls=CLASSES.Actor), **handles)
        assert attached.compute_log_prob(batch(2)).batch["rank"].tolist() == [0, 1]
    bare = RayWorkerGroup(worker_handles=actor.workers)
    assert bare.execute_rank_zero_sync("save_checkpoint", "x") == ("x", 0)
    with pytest.raises(AttributeError, match="attached without ray_cls_with_init"):
        bare.save_checkpoint("x")


@pytest.mark.parametrize("error", [RewardError("uid 7 has no reward"), ValueError("bad rows")], ids=type)
def test_an_error_of_a_worker_arrives_as_itself(groups, error):
    with pytest.raises(type(error), match=str(error)):
        groups["actor_rollout"].fail(error)


def test_an_error_that_nobody_waited_for_arrives_with_the_answer(groups):
    with pytest.raises(RewardError, match=r"^rank \d has 2 bad rows$"):
        groups["actor_rollout"].fail_later(batch(4)).get()


def test_a_group_can_be_used_by_another_actor(groups):
    @ray.remote(num_cpus=0.1)
    def elsewhere(group, rows):
        return group.compute_log_prob(rows).batch["old_log_probs"].tolist()

    assert ray.get(elsewhere.remote(groups["actor_rollout"], batch(2))) == [0, 2]


@pytest.mark.parametrize("error", [ConfigError("no key model.path"), ValueError("no such model")], ids=type)
def test_a_constructor_that_raises_gives_its_error_at_every_call(rank, error):
    group = RayWorkerGroup(rank, RayClassWithInitArgs(ray.remote(CLASSES.Broken), error=error))
    for _ in range(2):
        with pytest.raises(type(error), match=str(error)):
            group.init_model()
    group.close()


def test_a_dead_worker_is_named_with_its_group(pool):
    group = RayWorkerGroup(pool, RayClassWithInitArgs(CLASSES.Critic), name_prefix="doomed")
    assert all(group.is_worker_alive(worker) for worker in group.workers)
    ray.kill(group.workers[1])
    with pytest.raises(ResourceError, match=r"an actor of CriticWorker \(worker group 'doomed'\) died"):
        group.update_critic(batch(2))
    assert [group.is_worker_alive(worker) for worker in group.workers for _ in range(2)][-1] is False
    group.close()


@pytest.fixture
def interruptible():
    """SIGINT as in the foreground: tests that a shell started in the background inherit that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_aliveness_check_interrupts_a_driver_that_waits_for_something_else(rank, interruptible):  # noqa: ARG001
    classes = {role: RayClassWithInitArgs(CLASSES.Critic) for role in ("critic", "second")}
    group = RayWorkerGroup(rank, create_colocated_worker_cls(classes))
    ray.kill(group.spawn(["second"])["second"].workers[0])
    never = ray.remote(lambda: __import__("time").sleep(600)).remote()

    def driver():
        group.start_worker_aliveness_check(every_n_seconds=0.05)
        ray.get(never)

    with pytest.raises(KeyboardInterrupt):
        driver()
    ray.cancel(never, force=True)


def test_a_driver_in_the_background_which_ignores_interrupts_is_terminated():
    script = (
        "import signal, threading, time\n"
        "from types import SimpleNamespace\n"
        "from compat.single_controller.worker_group import check_workers_alive\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "group = SimpleNamespace(all_workers=['dead'], is_worker_alive=lambda _: False)\n"
        "threading.Thread(target=check_workers_alive, args=(group,), daemon=True).start()\n"
        "time.sleep(60)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert ended.returncode == -signal.SIGTERM, ended.stderr
    assert "SIGINT is ignored here" in ended.stderr


def test_async_methods_other_classes_and_the_environment_of_a_recipe(pool):
    worker = RayClassWithInitArgs(ray.remote(num_cpus=3, max_concurrency=2)(CLASSES.Async))
    group = RayWorkerGroup(pool, worker, worker_env={"RECIPE_SETTING": "on"})
    assert group.generate("hello") == ["hello 0 on", "hello 1 on"]
    group.close()
    with pytest.raises(WorkerGroupError, match=r"worker_env must not set \['RANK'\]"):
        RayWorkerGroup(pool, worker, worker_env={"RANK": "3"})


def test_parts_of_a_pool_are_groups_of_their_own(pool):
    first, second = split_resource_pool(pool, 1)
    assert (first.world_size, second.world_size, second.locate(0)) == (1, 1, pool.locate(1))
    assert [part.locate(0) for part in split_resource_pool(second, [1])] == [pool.locate(1)]
    group = RayWorkerGroup(second, RayClassWithInitArgs(CLASSES.Critic), master_port_range=[20000, 21000])
    assert group.update_critic(batch(3)) == [{"rank": 0, "rows": 3}]
    assert 20000 <= int(group.master_port) < 21000
    group.close()
    merged = merge_resource_pool(pool, pool)
    assert (merged.world_size, merged.locate(3)) == (4, pool.locate(1))
    with pytest.raises(ResourceError, match="2 ranks of pool tests do not split into 3"):
        split_resource_pool(pool, 3)


def test_runtime_worker_groups_drive_the_same_actors(groups):
    group = RuntimeWorkerGroup.__new__(RuntimeWorkerGroup)
    group.actors, group.world_size, group.name = groups["actor_rollout"].workers, 2, "actor"
    assert group.dispatch("compute_log_prob", batch(4)).batch["old_log_probs"].tolist() == [0, 2, 4, 6]


def test_fused_classes_are_spawned_and_fused_alike(rank):
    classes = {"critic": RayClassWithInitArgs(ray.remote(CLASSES.Critic))}
    group = RayWorkerGroup(rank, create_colocated_worker_cls_fused(class_dict=classes))
    assert group.fused_worker_used
    group.fuse({"critic"})
    assert group.critic.update_critic(batch(2)) == [{"rank": 0, "rows": 2}]
    group.close()


def test_what_the_cluster_never_has_fails_at_once_and_what_is_taken_in_time(cluster):  # noqa: ARG001
    huge = ResourcePoolManager({"global_pool": [999]}, {Role.Actor: "global_pool"})
    with pytest.raises(ValueError, match=r"they need 999 CPU \(it has \d+\)"):
        huge.create_resource_pool()
    free = int(ray.available_resources()["CPU"])
    taken = RayResourcePool([free])
    taken.get_placement_groups()
    late = RayResourcePool([1])
    late.timeout_s = 0.5
    with pytest.raises(ResourceError, match=r"could not place the actors within 0.5 s: \{'CPU': '1 wanted"):
        late.get_placement_groups()
    taken.release()


def test_groups_that_cannot_be_built(pool):
    with pytest.raises(WorkerGroupError, match="needs a resource_pool to start in, or worker_names"):
        RayWorkerGroup()
    with pytest.raises(WorkerGroupError, match="needs ray_cls_with_init"):
        RayWorkerGroup(pool)
    with pytest.raises(WorkerGroupError, match=r"takes no \['colour'\]"):
        RayWorkerGroup(pool, RayClassWithInitArgs(CLASSES.Critic), colour="red")
    with pytest.raises(WorkerGroupError, match="master_addr and master_port both"):
        RayWorkerGroup(pool, RayClassWithInitArgs(CLASSES.Critic), master_addr="localhost")
    manager = ResourcePoolManager({"global_pool": [1]}, {Role.Actor: "global_pool"})
    with pytest.raises(ResourceError, match=r"critic has no resource pool: .*call create_resource_pool first"):
        manager.get_resource_pool(Role.Critic)


def test_a_worker_built_without_a_group_names_what_is_missing(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(VerliftError, match="environment variable RANK is not set"):
        CLASSES.Critic()
