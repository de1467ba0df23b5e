"""``WorkerGroup``: the registered methods of a worker class, callable on all ranks at once."""

from __future__ import annotations

import _thread
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from compat.single_controller import shards
from compat.single_controller.actors import unwrap
from compat.single_controller.decorator import (
    MAGIC_ATTR,
    check_dispatch_mode,
    get_predefined_dispatch_fn,
    get_predefined_execute_fn,
)
from compat.single_controller.dispatch import PADDING_SIZE_KEY
from compat.single_controller.errors import UnregisteredMethodError

logger = logging.getLogger(__name__)


class WorkerMethod:
    """One registered method, on all ranks: cut the arguments, call, wait if it is blocking, join the answers."""

    def __init__(
        self,
        group: WorkerGroup,
        method_name: str,
        dispatch_fn: Callable[..., Any],
        collect_fn: Callable[..., Any],
        execute_fn: Callable[..., Any],
        blocking: bool,
    ) -> None:
        self.group, self.method_name, self.blocking = group, method_name, blocking
        self.dispatch_fn, self.collect_fn, self.execute_fn = dispatch_fn, collect_fn, execute_fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self.dispatch_fn(self.group, *args, **kwargs)
        padding = kwargs.pop(PADDING_SIZE_KEY, 0)
        answers = self.execute_fn(self.method_name, *args, **kwargs)
        if self.blocking:
            answers = self.group.fetch(answers)
        output = self.collect_fn(self.group, answers)
        # A list of answers by rank is no list of rows.
        added = padding if isinstance(padding, int) else padding.size
        unpads = added > 0 and output is not answers
        return shards.unpad(output, padding, self.method_name) if unpads else output


def func_generator(
    self: WorkerGroup,
    method_name: str,
    dispatch_fn: Callable[..., Any],
    collect_fn: Callable[..., Any],
    execute_fn: Callable[..., Any],
    blocking: bool,
) -> WorkerMethod:
    """The method that a worker group offers for a registered one of its workers."""
    return WorkerMethod(self, method_name, dispatch_fn, collect_fn, execute_fn, blocking)


class WorkerGroup:
    """Workers of ranks 0..world_size-1; ``RayWorkerGroup`` starts and calls them."""

    def __init__(self, worker_class: type | None) -> None:
        self.worker_class = worker_class
        self._workers: list[Any] = []
        self._worker_names: list[str] = []
        self._method_names: list[str] = []
        # What the ranks registered for a mesh, asked at the first call that is dispatched over it.
        self._dispatch_info: dict[str, list[int]] = {}
        self._collect_info: dict[str, list[bool]] = {}

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self._workers)

    @property
    def all_workers(self) -> list[Any]:
        """The workers of this group and of its roles."""
        return self._workers

    @property
    def worker_names(self) -> list[str]:
        """The Ray names of the actors, by rank."""
        return self._worker_names

    def fetch(self, references: Any) -> Any:
        """Wait for an answer, or for a list of them."""
        raise NotImplementedError

    def is_worker_alive(self, worker: Any) -> bool:
        """Whether a worker can still be called."""
        raise NotImplementedError

    def start_worker_aliveness_check(self, every_n_seconds: float = 1) -> None:
        """Watch the workers from a thread, and interrupt the main thread when one dies.

        A call that waits for a dead worker raises by itself; this also ends a driver that waits for something else.
        """
        watch = threading.Thread(target=check_workers_alive, args=(self, every_n_seconds), daemon=True)
        watch.start()

    def _bind_worker_method(self, user_defined_cls: Any, func_generator: Callable[..., Any]) -> list[str]:
        """Offer every method of a class that carries modes; a subclass that overrides one must register it again."""
        found = registered_methods(unwrap(user_defined_cls))
        for name, modes in found.items():
            mode = modes["dispatch_mode"]
            check_dispatch_mode(mode)
            functions = mode if isinstance(mode, dict) else get_predefined_dispatch_fn(mode)
            execute_fn = getattr(self, get_predefined_execute_fn(modes["execute_mode"])["execute_fn_name"])
            method = func_generator(
                self,
                name,
                dispatch_fn=functions["dispatch_fn"],
                collect_fn=functions["collect_fn"],
                execute_fn=execute_fn,
                blocking=modes["blocking"],
            )
            setattr(self, name, method)
        self._method_names += found
        return list(found)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_method_names" not in self.__dict__:
            raise AttributeError(name)
        raise UnregisteredMethodError(self._why_not(name))

    def _why_not(self, name: str) -> str:
        worker_class = self.worker_class
        if worker_class is None:
            return (
                f"this worker group has no {name!r}: it was attached without ray_cls_with_init, so no method is known"
            )
        known = ", ".join(sorted(method for method in self._method_names if not method.startswith("_")))
        if not hasattr(worker_class, name):
            return f"{worker_class.__name__} has no method {name!r}; it registered {known}"
        overridden = any(hasattr(base.__dict__.get(name), MAGIC_ATTR) for base in worker_class.__mro__)
        cause = "overrides a registered method without @register" if overridden else "is not registered"
        return (
            f"{worker_class.__name__}.{name} {cause}; put @register(dispatch_mode=Dispatch...) on it. Registered are "
            f"{known}"
        )


def registered_methods(worker_class: type) -> dict[str, dict[str, Any]]:
    """The modes of each method that carries any, inherited ones included, by name."""
    methods = {name: getattr(worker_class, name, None) for name in dir(worker_class)}
    return {name: getattr(method, MAGIC_ATTR) for name, method in methods.items() if hasattr(method, MAGIC_ATTR)}


def check_workers_alive(group: WorkerGroup, gap_time: float = 1) -> None:
    """Return, with the main thread interrupted, as soon as a worker of ``group`` is dead.

    A process that ignores SIGINT, as one does that a shell started in the background (``nohup ... &``), is terminated.
    """
    while _all_alive(group.all_workers, group.is_worker_alive):
        time.sleep(gap_time)
    if callable(signal.getsignal(signal.SIGINT)):
        _thread.interrupt_main()
    else:
        logger.error("SIGINT is ignored here, so that the driver cannot be interrupted: it is terminated")
        os.kill(os.getpid(), signal.SIGTERM)


def _all_alive(workers: Sequence[Any], is_alive: Callable[[Any], bool]) -> bool:
    for number, worker in enumerate(workers):
        if not is_alive(worker):
            logger.error("worker %d died: %s", number, worker)
            return False
    return True
