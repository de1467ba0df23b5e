"""``@register``, and the enumerations that a recipe extends."""

import asyncio
import pickle

import pytest

from compat.futures import DataProtoFuture
from compat.protocol import DataProto
from compat.single_controller import decorator
from compat.single_controller.decorator import MAGIC_ATTR, Dispatch, Execute, register
from compat.single_controller.dynamic_enum import DynamicEnum, _member
from compat.single_controller.errors import DispatchModeError, UnregisteredMethodError
from compat.single_controller.worker_group import WorkerGroup, func_generator, registered_methods


class Base:
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def inherited(self, value):
        return value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def overridden(self):
        return "base"

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO, blocking=False)
    async def later(self, value):
        return value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, materialize_futures=False)
    def raw(self, value):
        return value


class Sub(Base):
    def overridden(self):
        return "sub"

    @register(dispatch_mode=Dispatch.ALL_TO_ALL)
    def inherited(self, value):
        return [value]

    def unregistered(self):
        return None


class Group(WorkerGroup):
    execute_all = execute_rank_zero = None


def test_a_method_carries_its_modes_and_keeps_its_name():
    modes = getattr(Base.later, MAGIC_ATTR)
    assert modes == {"dispatch_mode": Dispatch.ONE_TO_ALL, "execute_mode": Execute.RANK_ZERO, "blocking": False}
    assert Base.later.__name__ == "later"


def test_an_override_without_register_is_not_offered_and_the_error_says_so():
    assert "overridden" not in registered_methods(Sub)
    assert registered_methods(Sub)["inherited"]["dispatch_mode"] is Dispatch.ALL_TO_ALL
    group = Group(Sub)
    assert sorted(group._bind_worker_method(Sub, func_generator)) == ["inherited", "later", "raw"]
    with pytest.raises(UnregisteredMethodError, match=r"Sub\.overridden overrides a registered method without"):
        group.overridden()
    with pytest.raises(AttributeError, match=r"Sub\.unregistered is not registered.*inherited, later, raw"):
        group.unregistered()
    with pytest.raises(AttributeError, match="Sub has no method 'missing'; it registered inherited, later, raw"):
        group.missing()
    assert not hasattr(group, "missing")


def test_futures_are_fetched_before_the_method_runs(monkeypatch):
    waiting = DataProtoFuture(collect_fn=None, futures=[])
    answer = DataProto.from_dict(non_tensors={"uid": ["a"]})
    monkeypatch.setattr(DataProtoFuture, "get", lambda self: answer if self is waiting else None)
    assert Base().inherited(waiting) is answer
    assert Base().inherited(value=waiting) is answer
    assert asyncio.run(Base().later(waiting)) is answer
    assert Base().raw(waiting) is waiting


def test_a_mode_of_a_recipe_is_registered_once_and_replaced_on_request():
    name = "rows_of_this_test"
    decorator.register_dispatch_mode(name, dispatch_fn=max, collect_fn=min)
    mode = Dispatch.from_name(name)
    try:
        assert mode is Dispatch.ROWS_OF_THIS_TEST
        assert mode in Dispatch
        assert decorator.get_predefined_dispatch_fn(mode) == {"dispatch_fn": max, "collect_fn": min}
        with pytest.raises(DispatchModeError, match="ROWS_OF_THIS_TEST is already registered"):
            decorator.register_dispatch_mode(name, dispatch_fn=max, collect_fn=min)
        decorator.update_dispatch_mode(mode, dispatch_fn=min, collect_fn=max)
        assert decorator.get_predefined_dispatch_fn(mode)["dispatch_fn"] is min
    finally:
        del decorator.DISPATCH_MODE_FN_REGISTRY[Dispatch.remove(name)]
    assert name.upper() not in Dispatch


def test_members_travel_by_name():
    assert pickle.loads(pickle.dumps(Dispatch.DP_COMPUTE)) is Dispatch.DP_COMPUTE
    # In a worker, a mode that the driver's script registered arrives before the script does.
    assert _member(Dispatch, "ONLY_IN_THE_DRIVER") is Dispatch.ONLY_IN_THE_DRIVER
    Dispatch.remove("ONLY_IN_THE_DRIVER")


def test_values_are_those_of_verl_and_each_enumeration_has_its_own():
    class Other(DynamicEnum):
        """Empty."""

    assert [member.value for member in list(Dispatch)[:8]] == list(range(8))
    assert Execute.names() == ["ALL", "RANK_ZERO"]
    assert Other.values() == []
    with pytest.raises(AttributeError, match="Dispatch has no member 'DP_COMPTE'; it has RANK_ZERO, ONE_TO_ALL"):
        _ = Dispatch.DP_COMPTE


def test_bad_modes_are_refused_when_the_class_is_defined():
    with pytest.raises(DispatchModeError, match="dispatch_mode must be a Dispatch, or a dict"):
        register(dispatch_mode={"dispatch_fn": max})
    with pytest.raises(DispatchModeError, match=r"execute_mode must be Execute\.ALL or"):
        register(execute_mode="ALL")
    with pytest.raises(DispatchModeError, match=r"RANK_ZERO has no functions: use Dispatch\.ALL_TO_ALL with"):
        decorator.get_predefined_dispatch_fn(Dispatch.RANK_ZERO)
    with pytest.raises(AssertionError, match="register it with register_dispatch_mode, or use one of ONE_TO_ALL"):
        decorator.update_dispatch_mode(Dispatch.register("without_functions"), max, min)
    Dispatch.remove("without_functions")
