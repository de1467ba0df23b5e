"""The import hook: ``verl`` and everything below it comes from the table. Cheap to import, in every process."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = "verl"
ORIGIN = "the verl alias of verlift"
MAIN_SUFFIX = ".__main__"
EXTERNAL_MODULES = "VERL_USE_EXTERNAL_MODULES"
"""verl's environment variable: modules of a recipe, separated by commas, that ``import verl`` imports."""
HOUSE = Path(__file__).resolve().parents[2]


class AliasFinder:
    """Finds ``verl`` and the modules below it, and leaves all others alone."""

    @staticmethod
    def find_spec(
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG004  (the signature of a finder)
        target: ModuleType | None = None,  # noqa: ARG004
    ) -> ModuleSpec | None:
        """The spec of a module of verl.

        Raises ``AliasError`` with the reason when it is not served; ``importlib.util.find_spec``, with which code
        looks whether there is a module, gets None.
        """
        if fullname != ROOT and not fullname.startswith(f"{ROOT}."):
            return None
        from compat.alias.modules import explain_module
        from compat.alias.table import MAIN, table

        if fullname.endswith(MAIN_SUFFIX) and table().row(fullname.removesuffix(MAIN_SUFFIX), MAIN):
            return ModuleSpec(fullname, LOADER, origin=_program_name(fullname))
        if table().has_module(fullname):
            return ModuleSpec(fullname, LOADER, origin=ORIGIN, is_package=True)
        if _is_a_question():
            return None
        from compat.alias.errors import AliasError

        raise AliasError(explain_module(fullname))


def _is_a_question() -> bool:
    """Whether a caller asks for the spec and imports nothing; ``python -m`` asks too, and is to have the reason."""
    caller = sys._getframe(3)  # above this function, find_spec and importlib's own loop over the finders
    behind = caller.f_back.f_globals if caller.f_back is not None else {}
    return caller.f_globals.get("__name__") == "importlib.util" and behind.get("__name__") != "runpy"


def _program_name(fullname: str) -> str:
    """What ``sys.argv[0]`` becomes: the path that the file has in verl."""
    return fullname.removesuffix(MAIN_SUFFIX).replace(".", "/") + ".py"


class AliasLoader:
    """Makes the modules; what they hold is looked up when it is used."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        from compat.alias.modules import AliasModule

        return AliasModule(spec.name, f"{spec.name}, as far as verlift serves it; `verlift doctor aliases` lists all.")

    def exec_module(self, module: ModuleType) -> None:
        """Forget what was looked up: the first import finds nothing to forget, a reload undoes patches.

        ``import verl`` itself then imports what ``VERL_USE_EXTERNAL_MODULES`` names, as verl's own does.
        """
        from compat.alias.table import table

        for name in table().served_names(module.__name__):
            vars(module).pop(name, None)
        if module.__name__ == ROOT and os.environ.get(EXTERNAL_MODULES):
            for name in os.environ[EXTERNAL_MODULES].split(","):
                importlib.import_module(name.strip())

    def get_code(self, fullname: str) -> CodeType | None:
        """The program of ``python -m``: a call of the function that the table names."""
        from compat.alias.table import MAIN, table

        row = table().row(fullname.removesuffix(MAIN_SUFFIX), MAIN)
        if row is None:
            return None
        module, _, function = row.target.partition(":")
        text = f"from {module} import {function}\nif __name__ == '__main__':\n    raise SystemExit({function}())\n"
        return compile(text, _program_name(fullname), "exec")

    def get_source(self, fullname: str) -> None:
        """There is none to show in tracebacks."""

    def get_resource_reader(self, fullname: str) -> Any:
        """Our folder that stands for the files of ``fullname``, or None."""
        from compat.alias.modules import files_target
        from compat.alias.resources import FolderReader

        target = files_target(fullname)
        return None if target is None else FolderReader(HOUSE.joinpath(*target.split(".")))


LOADER: Any = AliasLoader()
"""It does not derive from ``importlib.abc.Loader``, which would load 15 ms of modules into every process."""


def install() -> None:
    """Put the finder before all others, once."""
    if not is_installed():
        sys.meta_path.insert(0, AliasFinder)


def is_installed() -> bool:
    """Whether ``import verl`` is served by the alias in this process."""
    return AliasFinder in sys.meta_path
