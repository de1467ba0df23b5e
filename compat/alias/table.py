"""``names.tsv``: every module and name of verl that is served, or refused with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from compat.alias.errors import AliasError

ROOT = "verl"
FOLLOWED_VERSION = "0.9.1"
"""The version of verl whose behaviour the names follow."""

TABLE_FILE = Path(__file__).with_name("names.tsv")
COLUMNS = ("module", "name", "target", "note")

REFUSED = "!"
MODULE = "(module)"
"""A row for the module itself: its target is a module of ours whose names it also has, or all of it is refused."""
MAIN = "(main)"
"""A row for ``python -m module``: its target is the function to call."""
FILES = "(files)"
"""A row for ``importlib.resources.files(module)``: its target is one of our packages."""

ASK = "`verlift doctor aliases` lists what is served and what is refused"


class Row(NamedTuple):
    """One line of the table."""

    module: str
    name: str
    target: str
    """``our.module:object``, ``our.module``, or ``!``."""
    note: str
    """Of a refused name: why, and the way out."""

    @property
    def is_refused(self) -> bool:
        return self.target == REFUSED


class Table:
    """The rows by module. Raises ``AliasError`` naming the line that cannot be used."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.modules: dict[str, dict[str, Row]] = {ROOT: {}}
        for row in rows:
            for parent in parents(row.module):
                self.modules.setdefault(parent, {})
            self.modules.setdefault(row.module, {})[row.name] = row

    def row(self, module: str, name: str) -> Row | None:
        """The row of ``name`` in ``module``, if there is one."""
        return self.modules.get(module, {}).get(name)

    def served_names(self, module: str) -> list[str]:
        """Names of ``module`` with rows that are not refused, in alphabetical order; no modules."""
        rows = self.modules.get(module, {}).values()
        return sorted(row.name for row in rows if not row.is_refused and not row.name.startswith("("))

    def children(self, module: str) -> list[str]:
        """Names of the modules directly below ``module``."""
        prefix = f"{module}."
        below = (name.removeprefix(prefix) for name in self.modules if name.startswith(prefix))
        return sorted(name for name in below if "." not in name and self.has_module(prefix + name))

    def has_module(self, module: str) -> bool:
        """Whether ``module`` can be imported: it is in the table, or a parent of one, and not refused as a whole."""
        if module not in self.modules:
            return False
        own = self.row(module, MODULE)
        return own is None or not own.is_refused or self._has_served(module)

    def _has_served(self, module: str) -> bool:
        prefix = f"{module}."
        return any(
            not row.is_refused
            for name, rows in self.modules.items()
            if name == module or name.startswith(prefix)
            for row in rows.values()
        )

    def refusal(self, module: str, name: str = MODULE) -> Row | None:
        """The row that refuses ``name`` of ``module``: its own, else that of the nearest module around it."""
        own = self.row(module, name)
        if own is not None:
            return own if own.is_refused else None
        for around in (module, *parents(module)):
            row = self.row(around, MODULE)
            if row is not None:
                return row if row.is_refused else None
        return None

    def places(self, name: str) -> list[str]:
        """Modules that serve ``name``."""
        return sorted(module for module, rows in self.modules.items() if name in rows and not rows[name].is_refused)


def parents(module: str) -> Iterator[str]:
    """``verl.a.b`` gives ``verl.a`` and ``verl``."""
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


@cache
def table() -> Table:
    """The table of this installation, read once."""
    return Table(read_rows(TABLE_FILE.read_text(encoding="utf-8")))


def read_rows(text: str) -> Iterator[Row]:
    """The rows of a table's ``text``. Raises ``AliasError`` naming the line that cannot be used."""
    for number, line in enumerate(text.splitlines(), start=1):
        cells = line.split("\t")
        if number == 1 or not line.strip():
            continue
        if len(cells) == len(COLUMNS) - 1:  # editors cut an empty last cell off
            cells.append("")
        if len(cells) != len(COLUMNS):
            raise AliasError(f"{TABLE_FILE.name} line {number} has {len(cells)} cells, not {len(COLUMNS)}: {line!r}")
        row = Row(*(cell.strip() for cell in cells))
        _check(row, number)
        yield row


def _check(row: Row, number: int) -> None:
    where = f"{TABLE_FILE.name} line {number} ({row.module} {row.name})"
    if row.module != ROOT and not row.module.startswith(f"{ROOT}."):
        raise AliasError(f"{where}: the module must be {ROOT} or below it")
    if not row.target or not row.name:
        raise AliasError(f"{where}: name and target must be given; a refused name has the target {REFUSED}")
    if row.target.partition(":")[0].partition(".")[0] == ROOT:
        raise AliasError(f"{where}: its target {row.target!r} is in verl itself, which would go round in circles")
    if row.is_refused and not row.note:
        raise AliasError(f"{where}: a refused name needs a note that says why, and the way out")
