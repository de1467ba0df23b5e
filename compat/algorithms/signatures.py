"""How functions of recipes are called: by the names of their parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CellType, CodeType
from typing import Any

from compat.errors import CustomFunctionError

_BY_NAME = {"get_policy_loss_fn", "POLICY_LOSS_REGISTRY"}

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


def is_running(function: Callable[..., Any]) -> bool:
    """Whether ``function`` is being called further up the stack of this thread."""
    code = _code_of(function)
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


def calls(function: Callable[..., Any], core_name: str) -> bool:
    """Whether the text of ``function``, or of a function of its module that it names, mentions a core's algorithm.

    core_name: as in the registry. It may stand there as text that a registry is asked for, as verl's function for it,
    or as a variable that holds such a function.
    """
    inner = inspect.unwrap(function)
    module = getattr(inner, "__globals__", {})
    namespace = {**module, **_nonlocals(inner)}
    pending: list[CodeType | None] = [_code_of(function)]
    seen: set[CodeType] = set()
    while pending:
        code = pending.pop()
        if code is None or code in seen:
            continue
        seen.add(code)
        texts = {constant for constant in code.co_consts if isinstance(constant, str)}
        if f"compute_policy_loss_{core_name}" in code.co_names or (core_name in texts and _BY_NAME & {*code.co_names}):
            return True
        held = [namespace[name] for name in (*code.co_names, *code.co_freevars) if name in namespace]
        if any(getattr(value, "core_name", None) == core_name for value in held):
            return True
        pending += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        pending += [value.__code__ for value in held if getattr(value, "__globals__", None) is module]
    return False


def _code_of(function: Callable[..., Any]) -> CodeType | None:
    """The code of a function behind its decorators, or of a callable object's ``__call__``."""
    inner = inspect.unwrap(function)
    return getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)


def _nonlocals(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables of enclosing functions that ``function`` reads and that have a value yet."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = zip(names, getattr(function, "__closure__", None) or (), strict=False)
    return {name: cell.cell_contents for name, cell in cells if cell != CellType()}
