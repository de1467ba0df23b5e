"""A fault of one line, planted into running code and taken out again.

Only the function's code object is exchanged, so that whoever has imported the function, or keeps a bound method of it,
runs the fault; nothing on disk changes.
"""

from __future__ import annotations
import __future__ as future

import ast
import inspect
import textwrap
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any

from runtime.errors import VerliftError

TRAINERS = ("legacy", "v1", "shared")


class MutantError(VerliftError):
    """A mutant does not fit the code that it is to change."""


@dataclass(frozen=True)
class Mutant:
    """One line of one function, changed.

    trainer: ``shared`` where both trainers run the line and break alike; else the one in whose processes it is planted.
    target: ``module:function`` or ``module:Class.method``. old, new: a part of its source that stands there once, and
    what takes its place. stage, fields: where the fault must be seen first; any of the fields is right.
    setting: the run in which it shows, see ``settings.SETTINGS``.
    """

    name: str
    trainer: str
    target: str
    old: str
    new: str
    stage: str
    fields: tuple[str, ...]
    setting: str

    @property
    def module(self) -> str:
        """Where the function is defined."""
        return self.target.partition(":")[0]

    def plant(self) -> None:
        """Change the function in this process. Raises MutantError when it is not what the mutant was written for."""
        function = resolve(self.target)
        _ORIGINALS.setdefault(self.target, function.__code__)
        function.__code__ = self.code()

    def code(self) -> CodeType:
        """The changed function's code."""
        function = resolve(self.target)
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(self.old) != 1:
            raise MutantError(
                f"mutant {self.name!r}: {self.old!r} stands {source.count(self.old)} times in {self.target}, not once; "
                "write it anew for the code as it is"
            )
        tree = ast.parse(source.replace(self.old, self.new))
        (definition,) = tree.body
        assert isinstance(definition, ast.FunctionDef)
        definition.decorator_list = []
        flags = future.annotations.compiler_flag
        made: dict[str, Any] = {}
        exec(compile(tree, f"<mutant {self.name}>", "exec", flags, dont_inherit=True), function.__globals__, made)
        code = made[definition.name].__code__
        if code.co_freevars != function.__code__.co_freevars:
            raise MutantError(f"mutant {self.name!r}: {self.target} is a closure, which cannot be changed")
        return code


def resolve(target: str) -> FunctionType:
    """The function that ``target`` names, without its decorators."""
    module, _, path = target.partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        found = inspect.getattr_static(found, name) if inspect.isclass(found) else getattr(found, name)
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    elif isinstance(found, property):
        found = found.fget
    elif isinstance(found, cached_property):
        found = found.func
    return inspect.unwrap(found)


_ORIGINALS: dict[str, CodeType] = {}
"""The code of every function that was changed in this process."""


def restore(target: str) -> None:
    """Give the function ``target`` its own code back, if this process changed it."""
    if target in _ORIGINALS:
        resolve(target).__code__ = _ORIGINALS.pop(target)


def plant_in(_worker: Any, mutant: Mutant) -> None:
    """``Mutant.plant``, in the form that an actor runs."""
    mutant.plant()


def restore_in(_worker: Any, target: str) -> None:
    """``restore``, in the form that an actor runs."""
    restore(target)
