"""How much of what public recipes import from verl the alias serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from compat.alias.table import MODULE, Table

SURFACE_FILE = Path(__file__).with_name("surface.tsv")
"""Every ``module``, ``name`` that recipes of verl's recipe collection import, and the number of ``files`` that do."""

WIDELY_USED = 2
"""From this number of files on a name must be served or refused with a reason."""

Status = Literal["served", "refused", "missing"]


class Coverage(NamedTuple):
    """What becomes of one imported name."""

    module: str
    name: str
    files: int
    status: Status
    reason: str
    """Of a refused name."""

    @property
    def is_gap(self) -> bool:
        """It is missing, and not by choice."""
        return self.status == "missing" and self.files >= WIDELY_USED


def coverage(table: Table) -> Iterator[Coverage]:
    """What ``table`` does with each name of ``surface.tsv``, in its order."""
    for line in SURFACE_FILE.read_text(encoding="utf-8").splitlines()[1:]:
        module, name, files = line.split("\t")
        yield Coverage(module, name, int(files), *judge(table, module, name))


def judge(table: Table, module: str, name: str) -> tuple[Status, str]:
    """Whether ``from module import name`` works, and the reason when it is refused."""
    refusal = table.refusal(module, name) or table.row(f"{module}.{name}", MODULE)
    if refusal is not None and refusal.is_refused and not table.has_module(f"{module}.{name}"):
        return "refused", refusal.note
    is_served = table.row(module, name) is not None or table.has_module(
        module if name == MODULE else f"{module}.{name}"
    )
    return ("served", "") if is_served or _is_in_whole(table, module, name) else ("missing", "")


def _is_in_whole(table: Table, module: str, name: str) -> bool:
    """Whether the module of ours that stands for the whole of ``module`` has ``name``."""
    row = table.row(module, MODULE)
    if row is None or row.is_refused:
        return False
    from compat.alias.modules import resolve

    return hasattr(resolve(row.target), name)
