"""``RayWorkerGroup``: one Ray actor a rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self
from uuid import uuid4

import ray
from ray.exceptions import RayActorError

from compat.single_controller.actors import ColocatedClasses, RayClassWithInitArgs
from compat.single_controller.errors import UnregisteredMethodError, WorkerGroupError
from compat.single_controller.pools import RayResourcePool
from compat.single_controller.rendezvous import master_address
from compat.single_controller.worker_group import WorkerGroup, func_generator
from runtime.errors import ResourceError
from runtime.workers.group import get


@dataclass(frozen=True)
class ActorSettings:
    """What a ``RayWorkerGroup`` also takes by keyword: how its actors are started."""

    device_name: str = "cuda"
    """``cpu`` leaves the pool's GPUs alone."""
    use_gpu: bool = True
    """``False`` too."""
    worker_env: Mapping[str, str] | None = None
    """Environment variables of the actors, besides those that describe the rank."""
    profile_steps: Sequence[int] | None = None
    """With ``worker_nsight_options``: the actors run under Nsight."""
    worker_nsight_options: Mapping[str, Any] | None = None
    master_addr: str | None = None
    """Where the ranks meet; the node of rank 0 when ``None``. Only together with ``master_port``."""
    master_port: str | None = None
    master_port_range: Sequence[int] | None = None
    """First port and the one after the last to choose from, instead of any free one."""

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> Self:
        """``WorkerGroupError`` names a keyword that does not exist."""
        known = {setting.name for setting in fields(cls)}
        if odd := keywords.keys() - known:
            raise WorkerGroupError(
                f"a RayWorkerGroup takes no {sorted(odd)}; besides its arguments it takes {sorted(known)}"
            )
        settings = cls(**keywords)
        if (settings.master_addr is None) != (settings.master_port is None):
            raise WorkerGroupError("give master_addr and master_port both, or neither to have them chosen")
        return settings

    def runtime_env(self) -> dict[str, Any]:
        """Ray's ``runtime_env`` of the actors, empty where none is needed: it costs each actor a fresh process."""
        variables = {"env_vars": dict(self.worker_env)} if self.worker_env else {}
        profiled = self.profile_steps and self.worker_nsight_options and self.device_name == "cuda"
        return variables | ({"nsight": dict(self.worker_nsight_options or {})} if profiled else {})


class RayWorkerGroup(WorkerGroup):
    """Actors of a worker class in a pool's bundles, rank r in bundle r.

    It is built from a ``RayClassWithInitArgs``; or from ``create_colocated_worker_cls``, and then ``spawn`` gives the
    group of each role. An error that a worker raises, its constructor included, arrives as itself at the first call;
    an actor that died is a ``ResourceError`` that names the group.
    """

    def __init__(
        self,
        resource_pool: RayResourcePool | None = None,
        ray_cls_with_init: RayClassWithInitArgs | None = None,
        bin_pack: bool = True,
        name_prefix: str | None = None,
        detached: bool = False,
        worker_names: Sequence[str] | None = None,
        worker_handles: Sequence[Any] | None = None,
        ray_wait_register_center_timeout: float = 300,
        **kwargs: Any,
    ) -> None:
        """Start actors in ``resource_pool``, or attach to ``worker_handles`` or ``worker_names`` when it is ``None``.

        bin_pack: the ranks of one node really stand on one node. detached: the actors outlive the driver.
        ray_wait_register_center_timeout: seconds that constructors may take. kwargs: ``ActorSettings``.
        """
        super().__init__(None if ray_cls_with_init is None else ray_cls_with_init.worker_class)
        self.settings = ActorSettings.of(kwargs)
        self.resource_pool, self.ray_cls_with_init = resource_pool, ray_cls_with_init
        self.device_name = self.settings.device_name
        self.name_prefix = uuid4().hex[:6] if name_prefix is None else name_prefix
        self.fused_worker_used = ray_cls_with_init is not None and ray_cls_with_init.fused_worker_used
        self._master = self.settings.master_addr, self.settings.master_port
        self._start_timeout_s = ray_wait_register_center_timeout
        self._options: dict[str, Any] = {"lifetime": "detached"} if detached else {}
        self._built: list[Any] = []
        self._pings: dict[Any, Any] = {}
        self._roles: dict[str, Any] = {}
        if resource_pool is None:
            self._attach(worker_names, worker_handles)
        elif ray_cls_with_init is None:
            raise WorkerGroupError(
                "a RayWorkerGroup in a resource pool needs ray_cls_with_init=RayClassWithInitArgs(cls=...)"
            )
        else:
            resource_pool.get_placement_groups("STRICT_PACK" if bin_pack else "PACK", self.device_name)
            if isinstance(ray_cls_with_init, ColocatedClasses):
                self._start_roles(resource_pool, ray_cls_with_init, detached, kwargs)
                return
            self._start(resource_pool, ray_cls_with_init)
        if ray_cls_with_init is not None:
            self._bind_worker_method(ray_cls_with_init.cls, func_generator)

    @classmethod
    def from_detached(
        cls,
        name_prefix: str | None = None,
        worker_names: Sequence[str] | None = None,
        worker_handles: Sequence[Any] | None = None,
        ray_cls_with_init: RayClassWithInitArgs | None = None,
        **kwargs: Any,
    ) -> Self:
        """A group of actors that run already, with the methods of ``ray_cls_with_init``."""
        return cls(
            resource_pool=None,
            ray_cls_with_init=ray_cls_with_init,
            name_prefix=name_prefix,
            worker_names=worker_names,
            worker_handles=worker_handles,
            **kwargs,
        )

    # --- starting -----------------------------------------------------------------------------------------------------

    def _attach(self, names: Sequence[str] | None, handles: Sequence[Any] | None) -> None:
        if not names and not handles:
            raise WorkerGroupError("a RayWorkerGroup needs a resource_pool to start in, or worker_names to attach to")
        self._worker_names = list(names or ())
        self._workers = list(handles) if handles else [ray.get_actor(name) for name in self._worker_names]

    def _start(self, pool: RayResourcePool, worker: RayClassWithInitArgs) -> None:
        settings = self.settings
        if self._master == (None, None):
            self._master = master_address(*pool.locate(0), settings.master_port_range)
        if runtime_env := settings.runtime_env():
            self._options["runtime_env"] = runtime_env
        for rank, (local_rank, local_size) in enumerate(pool.local_ranks()):
            environment = self._environment(rank, pool.world_size, local_rank, local_size)
            name = f"{self.name_prefix}{worker.worker_class.__name__}_{rank // local_size}:{local_rank}"
            place = pool.options(rank, settings.use_gpu and settings.device_name != "cpu")
            self._workers.append(worker.start({**self._options, **place, "name": name}, environment))
            self._worker_names.append(name)
        self._built = [actor.raise_construction_error.remote() for actor in self._workers]

    def _environment(self, rank: int, world_size: int, local_rank: int, local_size: int) -> dict[str, str]:
        """What describes a rank, as verl sets it. Each rank sees one GPU at most: ``LOCAL_RANK`` counts in its view."""
        environment = {
            "WORLD_SIZE": world_size,
            "RANK": rank,
            "LOCAL_RANK": 0,
            "LOCAL_WORLD_SIZE": 1,
            "RAY_LOCAL_RANK": local_rank,
            "RAY_LOCAL_WORLD_SIZE": local_size,
            "MASTER_ADDR": self._master[0],
            "MASTER_PORT": self._master[1],
            "WG_PREFIX": self.name_prefix,
            "WG_BACKEND": "ray",
        }
        if both := environment.keys() & (self.settings.worker_env or {}).keys():
            raise WorkerGroupError(f"worker_env must not set {sorted(both)}: they describe the rank")
        return {name: str(value) for name, value in environment.items()}

    def _start_roles(
        self, pool: RayResourcePool, classes: ColocatedClasses, detached: bool, keywords: Mapping[str, Any]
    ) -> None:
        # A process group of its own for each role: two cannot meet at one port.
        keywords = {name: value for name, value in keywords.items() if name not in ("master_addr", "master_port")}
        for role, worker in classes.class_dict.items():
            self._roles[role] = self.__class__(
                pool,
                worker,
                name_prefix=f"{self.name_prefix}{role}_",
                detached=detached,
                ray_wait_register_center_timeout=self._start_timeout_s,
                **keywords,
            )
        first = next(iter(self._roles.values()))
        self._workers, self._worker_names, self._master = first._workers, first._worker_names, first._master
        for role, group in self._roles.items():
            for name in group._method_names:
                setattr(self, f"{role}_{name}", getattr(group, name))
                self._method_names.append(f"{role}_{name}")

    def _await_built(self) -> None:
        if not self._built:
            return
        _, pending = ray.wait(self._built, num_returns=len(self._built), timeout=self._start_timeout_s)
        if pending:
            raise ResourceError(
                f"{len(pending)} of {self.world_size} ranks of {self._label} were not ready within "
                f"{self._start_timeout_s:g} s; free CPUs or GPUs, or raise ray_wait_register_center_timeout if the "
                "constructor takes long"
            )
        self.fetch(self._built)
        self._built = []

    # --- roles of one pool --------------------------------------------------------------------------------------------

    def spawn(self, prefix_set: Iterable[str]) -> dict[str, Self]:
        """The group of each role in ``prefix_set``."""
        prefixes = list(prefix_set)
        if unknown := [prefix for prefix in prefixes if prefix not in self._roles]:
            raise WorkerGroupError(
                f"this worker group has no roles {unknown}, only {sorted(self._roles)}; build it from "
                "create_colocated_worker_cls(class_dict)"
            )
        return {prefix: self._roles[prefix] for prefix in prefixes}

    spawn_fused = spawn

    def fuse(self, prefix_set: Iterable[str]) -> None:
        """Make the group of each role in ``prefix_set`` an attribute of this one."""
        for role, group in self.spawn(prefix_set).items():
            setattr(self, role, group)

    # --- calling ------------------------------------------------------------------------------------------------------

    def execute_all_async(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method, registered or not, on every rank; references to the answers, by rank.

        When all arguments are lists with one entry a rank, each rank gets its entry; else all get all arguments.
        """
        self._await_built()
        values = [*args, *kwargs.values()]
        if not all(isinstance(value, list) and len(value) == self.world_size for value in values):
            return [self._call(worker, method_name, *args, **kwargs) for worker in self._workers]
        return [
            self._call(
                worker, method_name, *(arg[rank] for arg in args), **{key: arg[rank] for key, arg in kwargs.items()}
            )
            for rank, worker in enumerate(self._workers)
        ]

    execute_all = execute_all_async

    def execute_all_sync(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """``execute_all_async``, and wait for the answers."""
        return self.fetch(self.execute_all_async(method_name, *args, **kwargs))

    def execute_rank_zero_async(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method on rank 0; a reference to the answer."""
        self._await_built()
        return self._call(self._workers[0], method_name, *args, **kwargs)

    execute_rank_zero = execute_rank_zero_async

    def execute_rank_zero_sync(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method on rank 0, and wait for the answer."""
        return self.fetch(self.execute_rank_zero_async(method_name, *args, **kwargs))

    def fetch(self, references: Any) -> Any:
        return get(references, self._label)

    def _call(self, worker: Any, method_name: str, *args: Any, **kwargs: Any) -> Any:
        method = getattr(worker, method_name, None)
        if method is None:
            raise UnregisteredMethodError(self._why_not(method_name))
        return method.remote(*args, **kwargs)

    # --- what it is made of -------------------------------------------------------------------------------------------

    @property
    def workers(self) -> list[Any]:
        """The actors, by rank; of a group of several roles, those of its first role."""
        self._await_built()
        return self._workers

    @property
    def all_workers(self) -> list[Any]:
        """The actors of every role."""
        if not self._roles:
            return self._workers
        return [worker for group in self._roles.values() for worker in group.all_workers]

    @property
    def master_address(self) -> str | None:
        """The address at which the ranks meet."""
        return self._master[0]

    @property
    def master_port(self) -> str | None:
        """The port at which the ranks meet."""
        return self._master[1]

    def close(self) -> None:
        """End the actors, of every role."""
        for worker in self.all_workers:
            ray.kill(worker)

    def is_worker_alive(self, worker: Any) -> bool:
        """Whether a worker runs; one that is busy does. Its death is seen within two calls."""
        ping = self._pings.setdefault(worker, worker.__ray_ready__.remote())
        if not ray.wait([ping], timeout=0)[0]:
            return True
        del self._pings[worker]
        try:
            ray.get(ping)
        except RayActorError:
            return False
        return True

    @property
    def _label(self) -> str:
        worker_class = "an unknown class" if self.worker_class is None else self.worker_class.__name__
        return f"{worker_class} (worker group {self.name_prefix!r})"
