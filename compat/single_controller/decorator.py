"""``@register``: says how a worker's method is called through a worker group, as verl's decorator of that name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from compat.single_controller.dispatch import (
    collect_all_to_all,
    collect_dp_compute,
    collect_dp_compute_data_proto,
    dispatch_all_to_all,
    dispatch_dp_compute,
    dispatch_dp_compute_data_proto,
    dispatch_dp_compute_data_proto_with_func,
    dispatch_one_to_all,
    dummy_direct_rollout_call,
    materialize_futures,
)
from compat.single_controller.dynamic_enum import DynamicEnum
from compat.single_controller.errors import DispatchModeError

MAGIC_ATTR = "attrs_3141562937"
"""The attribute under which a registered method carries its modes; verl's own spelling, which recipes read."""

Method = TypeVar("Method", bound=Callable[..., Any])
Functions = dict[str, Callable[..., Any]]


class Dispatch(DynamicEnum):
    """How a batch is cut among ranks; extend it with ``register_dispatch_mode``."""


class Execute(DynamicEnum):
    """Which ranks run a method."""


for _name in (
    "RANK_ZERO",
    "ONE_TO_ALL",
    "ALL_TO_ALL",
    "DP_COMPUTE",
    "DP_COMPUTE_PROTO",
    "DP_COMPUTE_PROTO_WITH_FUNC",
    "DP_COMPUTE_METRIC",
    "DIRECT_ROLLOUT_METHOD",
    # Modes of Megatron workers up to verl 0.5: a class that names one can be defined, a group of it is refused.
    "MEGATRON_COMPUTE",
    "MEGATRON_PP_AS_DP",
    "MEGATRON_PP_ONLY",
    "MEGATRON_COMPUTE_PROTO",
    "MEGATRON_PP_AS_DP_PROTO",
    "MEGATRON_PP_DUMMY_PROTO",
):
    Dispatch.register(_name)

for _name in ("ALL", "RANK_ZERO"):
    Execute.register(_name)


def _functions(dispatch_fn: Callable[..., Any], collect_fn: Callable[..., Any]) -> Functions:
    return {"dispatch_fn": dispatch_fn, "collect_fn": collect_fn}


DISPATCH_MODE_FN_REGISTRY: dict[DynamicEnum, Functions] = {
    Dispatch.ONE_TO_ALL: _functions(dispatch_one_to_all, collect_all_to_all),
    Dispatch.ALL_TO_ALL: _functions(dispatch_all_to_all, collect_all_to_all),
    Dispatch.DP_COMPUTE: _functions(dispatch_dp_compute, collect_dp_compute),
    Dispatch.DP_COMPUTE_PROTO: _functions(dispatch_dp_compute_data_proto, collect_dp_compute_data_proto),
    Dispatch.DP_COMPUTE_PROTO_WITH_FUNC: _functions(
        dispatch_dp_compute_data_proto_with_func, collect_dp_compute_data_proto
    ),
    Dispatch.DP_COMPUTE_METRIC: _functions(dispatch_dp_compute_data_proto, collect_dp_compute),
    Dispatch.DIRECT_ROLLOUT_METHOD: _functions(dummy_direct_rollout_call, dummy_direct_rollout_call),
}
"""The dispatch and collect function of each mode."""

EXECUTE_FN_NAMES: dict[DynamicEnum, str] = {Execute.ALL: "execute_all", Execute.RANK_ZERO: "execute_rank_zero"}
"""The method of a worker group that carries out each execute mode."""


def get_predefined_dispatch_fn(dispatch_mode: Any) -> Functions:
    """The dispatch and collect function of a mode. ``DispatchModeError`` names the modes that have any."""
    if dispatch_mode in DISPATCH_MODE_FN_REGISTRY:
        return DISPATCH_MODE_FN_REGISTRY[dispatch_mode]
    name = getattr(dispatch_mode, "name", str(dispatch_mode))
    if name.startswith("MEGATRON"):
        reason = "Megatron's parallel groups do not exist here; use Dispatch.DP_COMPUTE_PROTO"
    elif name == "RANK_ZERO":
        reason = "use Dispatch.ALL_TO_ALL with execute_mode=Execute.RANK_ZERO"
    else:
        known = ", ".join(mode.name for mode in DISPATCH_MODE_FN_REGISTRY if isinstance(mode, DynamicEnum))
        reason = f"register it with register_dispatch_mode, or use one of {known}"
    raise DispatchModeError(f"dispatch mode {name} has no functions: {reason}")


def get_predefined_execute_fn(execute_mode: Any) -> dict[str, str]:
    """``{"execute_fn_name": name}``: the worker group's method that carries out ``execute_mode``."""
    check_execute_mode(execute_mode)
    return {"execute_fn_name": EXECUTE_FN_NAMES[execute_mode]}


def register_dispatch_mode(
    dispatch_mode_name: str, dispatch_fn: Callable[..., Any], collect_fn: Callable[..., Any]
) -> None:
    """Add ``Dispatch.<NAME>`` with its functions. ``DispatchModeError`` when the name is taken."""
    DISPATCH_MODE_FN_REGISTRY[Dispatch.register(dispatch_mode_name)] = _functions(dispatch_fn, collect_fn)


def update_dispatch_mode(dispatch_mode: Any, dispatch_fn: Callable[..., Any], collect_fn: Callable[..., Any]) -> None:
    """Replace the functions of a mode that has some."""
    check_dispatch_mode(dispatch_mode)
    get_predefined_dispatch_fn(dispatch_mode)
    DISPATCH_MODE_FN_REGISTRY[dispatch_mode] = _functions(dispatch_fn, collect_fn)


def check_dispatch_mode(dispatch_mode: Any) -> None:
    """``DispatchModeError`` unless it is a ``Dispatch``, or a dict with ``dispatch_fn`` and ``collect_fn``."""
    if isinstance(dispatch_mode, Dispatch):
        return
    if not isinstance(dispatch_mode, dict) or not {"dispatch_fn", "collect_fn"} <= dispatch_mode.keys():
        raise DispatchModeError(
            f"dispatch_mode must be a Dispatch, or a dict with dispatch_fn and collect_fn, got {dispatch_mode!r}"
        )


def check_execute_mode(execute_mode: Any) -> None:
    """``DispatchModeError`` unless it is ``Execute.ALL`` or ``Execute.RANK_ZERO``."""
    if not isinstance(execute_mode, Execute) or execute_mode not in EXECUTE_FN_NAMES:
        raise DispatchModeError(f"execute_mode must be Execute.ALL or Execute.RANK_ZERO, got {execute_mode!r}")


def register(
    dispatch_mode: Any = Dispatch.ALL_TO_ALL,
    execute_mode: Any = Execute.ALL,
    blocking: bool = True,
    materialize_futures: bool = True,
) -> Callable[[Method], Method]:
    """Mark a worker's method, plain or ``async``, as one that the worker group offers.

    blocking: whether the group's method waits for the answers; if not, it returns a ``DataProtoFuture`` (modes that
    join answers) or Ray references. materialize_futures: whether futures among the arguments are fetched, in the
    worker, before the method runs.
    """
    check_dispatch_mode(dispatch_mode)
    check_execute_mode(execute_mode)
    modes = {"dispatch_mode": dispatch_mode, "execute_mode": execute_mode, "blocking": blocking}

    def decorate(method: Method) -> Method:
        wrapper = _materialized(method) if materialize_futures else method
        setattr(wrapper, MAGIC_ATTR, modes)
        return wrapper  # type: ignore[return-value]

    return decorate


def _materialized(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def inner(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = materialize_futures(*args, **kwargs)
        return method(*args, **kwargs)

    @wraps(method)
    async def async_inner(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = materialize_futures(*args, **kwargs)
        return await method(*args, **kwargs)

    return async_inner if inspect.iscoroutinefunction(method) else inner
