"""Worker classes as Ray actors, and several of them for one pool."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup

from compat.single_controller.errors import WorkerGroupError
from runtime.cluster import Placement


class ClassWithInitArgs:
    """A class with the arguments to build it with, later and elsewhere."""

    fused_worker_used = False

    def __init__(self, cls: Any, *args: Any, **kwargs: Any) -> None:
        self.cls, self.args, self.kwargs = cls, args, kwargs

    def __call__(self) -> Any:
        """Build it here."""
        return self.cls(*self.args, **self.kwargs)


class RayClassWithInitArgs(ClassWithInitArgs):
    """A worker class, plain or ``ray.remote``, with the arguments of its constructor."""

    def __init__(self, cls: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(cls, *args, **kwargs)
        self._options: dict[str, Any] = {}

    @property
    def worker_class(self) -> type:
        """The plain class."""
        return unwrap(self.cls)

    def update_options(self, options: Mapping[str, Any]) -> None:
        """Set Ray options of the actors."""
        self._options.update(options)

    def set_additional_resource(self, additional_resource: Mapping[str, Any]) -> None:
        """Set Ray options that ask for more resources."""
        self._options.update(additional_resource)

    def start(self, options: Mapping[str, Any], environment: Mapping[str, str]) -> Any:
        """Start an actor with ``environment`` set before its constructor runs. ``options`` win over the class's own."""
        own = getattr(self.cls, "_default_options", {})
        actor: Any = ray.remote(guarded(self.worker_class))
        return actor.options(**{**own, **self._options, **options}).remote(dict(environment), self.args, self.kwargs)

    def __call__(  # type: ignore[override]
        self,
        placement_group: PlacementGroup,
        placement_group_bundle_idx: int,
        use_gpu: bool = True,
        num_gpus: float = 1,
    ) -> Any:
        """Start an actor in a bundle; the caller has set ``runtime_env`` and ``name`` with ``update_options``."""
        gpus = num_gpus if use_gpu else 0
        return self.start(Placement(placement_group).options(placement_group_bundle_idx, cpus=0, gpus=gpus), {})


def unwrap(worker_class: Any) -> type:
    """The plain class behind ``ray.remote(cls)``."""
    return getattr(worker_class, "__ray_actor_class__", worker_class)


def guarded(worker_class: type) -> type:
    """A worker class whose constructor sets the environment and keeps an error for ``raise_construction_error``.

    Ray reports an actor whose constructor raised as a dead one, and tells the error's type and message apart only as
    text.
    """

    class Guarded(worker_class):
        def __init__(self, environment: dict[str, str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            os.environ.update(environment)
            self._construction_error: Exception | None = None
            try:
                super().__init__(*args, **kwargs)
            except Exception as error:
                self._construction_error = error

        def raise_construction_error(self) -> None:
            if self._construction_error is not None:
                raise self._construction_error

    Guarded.__name__, Guarded.__qualname__ = worker_class.__name__, worker_class.__qualname__
    Guarded.__module__ = worker_class.__module__
    return Guarded


class ColocatedClasses(RayClassWithInitArgs):
    """Worker classes of several roles for one pool.

    verl builds one process a rank that holds an object of each role. Here each role has a process of its own in the
    rank's bundle, on the same GPU: roles need not share process groups, and one that dies is named.
    """

    def __init__(self, class_dict: Mapping[str, RayClassWithInitArgs], fused: bool = False) -> None:
        if not class_dict:
            raise WorkerGroupError("a pool without roles has no workers; leave out the pool, or give it a role")
        super().__init__(next(iter(class_dict.values())).cls)
        self.class_dict = dict(class_dict)
        self.fused_worker_used = fused


def create_colocated_worker_cls(class_dict: Mapping[str, RayClassWithInitArgs]) -> ColocatedClasses:
    """What a ``RayWorkerGroup`` of a pool is built from; ``spawn`` then gives the group of each role."""
    return ColocatedClasses(class_dict)


def create_colocated_worker_cls_fused(class_dict: Mapping[str, RayClassWithInitArgs]) -> ColocatedClasses:
    """``create_colocated_worker_cls`` for ``fuse``, which makes the group of each role an attribute."""
    return ColocatedClasses(class_dict, fused=True)
