"""The modules that stand for verl's: names are looked up in the table at first use."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from compat.alias.errors import AliasAttributeError
from compat.alias.table import ASK, FILES, MODULE, Row, table


class AliasModule(ModuleType):
    """A module of verl. Attributes are resolved at first use and kept; one that is set stays on this module."""

    def __getattr__(self, name: str) -> Any:
        row = table().row(self.__name__, name)
        if row is not None and not row.is_refused:
            value = resolve(row.target)
        elif name == "__all__":
            return self.served()
        elif name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        elif row is None and table().has_module(f"{self.__name__}.{name}"):
            return importlib.import_module(f"{self.__name__}.{name}")
        else:
            value = self._from_whole(name)
        # A value that another thread put there in the meantime is the same object.
        return self.__dict__.setdefault(name, value)

    def _from_whole(self, name: str) -> Any:
        """``name`` of the module of ours that stands for this one as a whole."""
        whole = self._whole()
        if whole is not None and table().refusal(self.__name__, name) is None and hasattr(whole, name):
            return getattr(whole, name)
        raise AliasAttributeError(explain_name(self.__name__, name))

    def _whole(self) -> ModuleType | None:
        row = table().row(self.__name__, MODULE)
        return None if row is None or row.is_refused else resolve(row.target)

    def served(self) -> list[str]:
        """Every public name that can be had, modules below this one not counted."""
        names = set(table().served_names(self.__name__))
        if (whole := self._whole()) is not None:
            public = getattr(whole, "__all__", [name for name in vars(whole) if not name.startswith("_")])
            names |= {name for name in public if table().refusal(self.__name__, name) is None}
        return sorted(names)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self.served(), *table().children(self.__name__)})


def resolve(target: str) -> Any:
    """The object that ``our.module:object.attribute`` or ``our.module`` names."""
    module_name, _, path = target.partition(":")
    value: Any = importlib.import_module(module_name)
    for name in path.split(".") if path else ():
        value = getattr(value, name)
    return value


def explain_module(module: str) -> str:
    """Why ``module`` cannot be imported, and what can be done."""
    parent, _, name = module.rpartition(".")
    row = table().row(parent, name)
    refusal = row if row is not None and row.is_refused else table().refusal(module)
    if refusal is not None:
        return _refused(module, refusal)
    return explain_name(parent, name)


def explain_name(module: str, name: str) -> str:
    """Why ``name`` of ``module`` is not served, and what can be done."""
    refusal = table().refusal(module, name)
    if refusal is not None:
        return _refused(f"{module}.{name}", refusal)
    from difflib import get_close_matches

    served = [*table().served_names(module), *table().children(module)]
    near = get_close_matches(name, served, n=5, cutoff=0.4) or served[:5]
    hints = []
    if elsewhere := table().places(name):
        hints.append(f"{name} is served in {', '.join(elsewhere)}")
    if near:
        hints.append(f"near names served in {module}: {', '.join(near)}")
    return "; ".join([f"{module}.{name} is not served by the verl alias", *hints, ASK])


def _refused(what: str, row: Row) -> str:
    # The reason may be that of a whole module around the name.
    about = "" if what in (row.module, f"{row.module}.{row.name}") else f" (as all of {row.module})"
    return f"{what} is not served by the verl alias{about}: {row.note}"


def files_target(module: str) -> str | None:
    """The package of ours whose files stand for those of ``module``."""
    row = table().row(module, FILES)
    return None if row is None or row.is_refused else row.target
