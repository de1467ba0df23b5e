"""Enumerations that recipes may extend: ``Dispatch.register("MY_MODE")`` gives ``Dispatch.MY_MODE``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self

from compat.single_controller.errors import DispatchModeError


class DynamicEnumMeta(type):
    """Iteration, membership (by name or member) and ``Enum["NAME"]`` on the class itself."""

    _members: dict[str, Any]

    def __iter__(cls) -> Iterator[Any]:
        return iter(cls._members.values())

    def __contains__(cls, item: object) -> bool:
        return item in cls._members if isinstance(item, str) else item in cls._members.values()

    def __getitem__(cls, name: str) -> Any:
        return cls._members[name]

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"{cls.__name__} has no member {name!r}; it has {', '.join(cls._members)}")

    def names(cls) -> list[str]:
        """Member names, in the order of registration."""
        return list(cls._members)

    def values(cls) -> list[Any]:
        """Members, in the order of registration."""
        return list(cls._members.values())


class DynamicEnum(metaclass=DynamicEnumMeta):
    """Base of an enumeration; members are compared by identity and pickled by name, as ``verl``'s ``DynamicEnum``."""

    _members: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls._members = {}

    def __init__(self, name: str, value: int) -> None:
        self.name, self.value = name, value

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {self.value}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _member, (type(self), self.name)

    @classmethod
    def register(cls, name: str) -> Self:
        """Add a member, named in capitals. ``DispatchModeError`` when the name is taken."""
        key = name.upper()
        if key in cls._members:
            raise DispatchModeError(f"{cls.__name__}.{key} is already registered; choose another name")
        member = cls(key, 1 + max((known.value for known in cls), default=-1))
        cls._members[key] = member
        setattr(cls, key, member)
        return member

    @classmethod
    def remove(cls, name: str) -> Self:
        """Take a member out again."""
        member = cls._members.pop(name.upper())
        delattr(cls, member.name)
        return member

    @classmethod
    def from_name(cls, name: str) -> Self | None:
        """The member of that name in any case, ``None`` when there is none."""
        return cls._members.get(name.upper())


def _member(enumeration: type[DynamicEnum], name: str) -> DynamicEnum:
    """The member of that name; a mode that a recipe's script registered is unknown in a worker until it arrives."""
    return enumeration.from_name(name) or enumeration.register(name)
