"""``verlift doctor aliases``: what of verl the alias serves, what it refuses and why, and what is missing."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from compat.alias.coverage import Coverage

STATUSES = ("served", "refused", "missing")
Format = Literal["text", "json"]


def aliases(
    form: Annotated[Format, typer.Option("--format", help="text for people, json for programs.")] = "text",
) -> None:
    """Hold the verl alias against what public recipes import. Exit code 1 if a name of 2 files or more is missing."""
    from compat.alias.coverage import coverage
    from compat.alias.table import table

    names = list(coverage(table()))
    if form == "json":
        print(json.dumps(as_json(names), indent=2))
    else:
        print_coverage(names, Console())
    raise typer.Exit(int(any(name.is_gap for name in names)))


def as_json(names: Sequence[Coverage]) -> dict[str, object]:
    """Counts by status, and every name."""
    return {"counts": _counts(names), "names": [name._asdict() for name in names]}


def print_coverage(names: Sequence[Coverage], console: Console) -> None:
    """A table of counts by module, then each refused name with its reason, then each missing one."""
    by_module: dict[str, list[Coverage]] = defaultdict(list)
    for name in names:
        by_module[name.module].append(name)
    table = Table("module", *STATUSES, title="names of verl that recipes import")
    for module, inside in sorted(by_module.items()):
        table.add_row(module, *(str(count or "") for count in _counts(inside).values()))
    table.add_section()
    table.add_row("all", *(str(count) for count in _counts(names).values()))
    console.print(table)
    for status in STATUSES[1:]:
        for name in (name for name in names if name.status == status):
            reason = name.reason or f"imported by {name.files} files"
            console.print(
                f"{status} {name.module}:{name.name}: {reason}", markup=False, highlight=False, soft_wrap=True
            )


def _counts(names: Sequence[Coverage]) -> dict[str, int]:
    found: Counter[str] = Counter(name.status for name in names)
    return {status: found[status] for status in STATUSES}
