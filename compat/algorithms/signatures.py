"""How functions of recipes are called: by the names of their parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from compat.errors import CustomFunctionError

_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Signature:
    """The parameters of a function that is called with keywords."""

    function: str
    """Name, file and line, for messages."""
    required: tuple[str, ...]
    """Parameters without a default, in order."""
    optional: tuple[str, ...]
    """Parameters with a default."""
    takes_any: bool
    """Whether it takes ``**kwargs``."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Signature:
        """Read the signature. Raises ``CustomFunctionError`` for what has none or has positional-only parameters."""
        name = describe(function)
        if not callable(function):
            raise CustomFunctionError(f"{name} is no function")
        parameters = inspect.signature(function).parameters.values()
        unnamed = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
        if unnamed:
            raise CustomFunctionError(f"{name} takes {unnamed} by position only; parameters are passed by name")
        named = [p for p in parameters if p.kind in _KEYWORD]
        return cls(
            name,
            tuple(p.name for p in named if p.default is p.empty),
            tuple(p.name for p in named if p.default is not p.empty),
            any(p.kind is p.VAR_KEYWORD for p in parameters),
        )

    def accepts(self, name: str) -> bool:
        """Whether the function can be given ``name``."""
        return self.takes_any or name in self.required or name in self.optional

    def refuse_unknown(self, known: Iterable[str], what: str) -> None:
        """Raise ``CustomFunctionError`` naming the first required parameter that is not among ``known``."""
        for name in self.required:
            if name not in known:
                raise CustomFunctionError(
                    f"{what} {self.function} requires the parameter {name!r}, which nothing provides; give it a "
                    f"default, or use one of {', '.join(sorted(known))}"
                )

    def pick(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Those of ``arguments`` that the function can be given."""
        return {name: value for name, value in arguments.items() if self.accepts(name)}


def describe(function: Any) -> str:
    """Dotted name, file and line of a function."""
    name = f"{module_of(function)}.{qualname_of(function)}"
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def same_definition(left: Any, right: Any) -> bool:
    """Whether two functions come from one ``def`` of one file, which may have been imported under two names."""
    codes = [getattr(inspect.unwrap(function), "__code__", None) for function in (left, right)]
    places = [(code.co_filename, code.co_firstlineno) if code else None for code in codes]
    return None not in places and places[0] == places[1] and qualname_of(left) == qualname_of(right)


def module_of(function: Any) -> str:
    """The module that a function (or the class of a callable object) was defined in."""
    return getattr(function, "__module__", None) or type(function).__module__


def qualname_of(function: Any) -> str:
    """The qualified name of a function, or that of the class of a callable object."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__
