"""Whether the real verl could be imported, in whose place the alias would stand."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from compat.alias.errors import AliasError
from compat.alias.table import ROOT


def find_real_verl(folders: Iterable[str | os.PathLike[str]]) -> str | None:
    """Where a ``verl`` package stands in one of ``folders`` of the search path, or is installed; None: nowhere."""
    for folder in folders:
        package = Path(folder or ".").resolve() / ROOT
        if (package / "__init__.py").is_file():
            return str(package)
    try:
        distribution = importlib.metadata.distribution(ROOT)
    except importlib.metadata.PackageNotFoundError:
        return None
    return f"{distribution.locate_file('')} (verl {distribution.version}, installed)"


def refuse_real_verl(folders: Iterable[str | os.PathLike[str]], way_to_force: str) -> None:
    """Raise ``AliasError`` naming where the real verl is and how the alias can be had all the same."""
    place = find_real_verl(folders)
    if place is not None:
        raise AliasError(
            f"the real verl is at {place}: the alias does not take its place unasked. "
            f"Uninstall it or start from another folder, or pass {way_to_force} to let the alias win"
        )


def folders_of_command(command: Sequence[str]) -> list[str]:
    """Folders that a Python of ``command`` would look in first: the working directory, its script's, PYTHONPATH."""
    scripts = [str(Path(argument).parent) for argument in command if argument.endswith(".py")]
    return [os.getcwd(), *scripts, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *sys.path]
