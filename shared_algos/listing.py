"""The registered algorithms as Markdown tables, made from what each entry declares."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from shared_algos.advantages import ADVANTAGES
from shared_algos.policy_losses import POLICY_LOSSES
from shared_algos.registry import Entry, Registry

BEGIN, END = "<!-- made from the registry by `make docs` -->", "<!-- end -->"


def fill(text: str) -> str:
    """``text`` with what stands between each pair of marks replaced by the table of its kind, in this order."""
    tables = iter((estimator_table(), loss_table()))
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    return re.sub(pattern, lambda _: f"{BEGIN}\n{next(tables)}\n{END}", text, flags=re.DOTALL)


def estimator_table() -> str:
    """Advantage estimators: name, paper, needs, level and what they do."""
    return _table(
        ("`algorithm.adv_estimator`", "paper", "needs", "level", "both trainers", "what it is"),
        ((_names(ADVANTAGES, entry), *_cells(entry)) for entry in _originals(ADVANTAGES)),
    )


def loss_table() -> str:
    """Policy losses, and whether they look at the whole mini-batch first."""
    return _table(
        ("`actor.policy_loss.loss_mode`", "paper", "needs", "level", "both trainers", "what it is"),
        ((_names(POLICY_LOSSES, entry), *_cells(entry)) for entry in _originals(POLICY_LOSSES)),
    )


def _originals(registry: Registry[Any]) -> list[Entry[Any]]:
    """One entry a function, its shortest name first: the other names are aliases."""
    by_function: dict[Any, Entry[Any]] = {}
    for name in sorted(registry.names(), key=len):
        by_function.setdefault(registry.get(name).function, registry.get(name))
    return sorted(by_function.values(), key=lambda entry: entry.name)


def _names(registry: Registry[Any], entry: Entry[Any]) -> str:
    names = [name for name in registry.names() if registry.get(name).function is entry.function]
    return ", ".join(f"`{name}`" for name in sorted(names, key=len))


def _cells(entry: Entry[Any]) -> tuple[str, ...]:
    """A loss's ``selected`` is its own: it says that the loss looks at the whole mini-batch first."""
    needs = [f"`{need}`" for need in sorted(entry.needs - {"selected"})]
    if entry.select is not None:
        needs.append("a look at the whole mini-batch")
    summary = (entry.function.__doc__ or "").strip().splitlines()[0].replace("``", "`")
    return entry.reference, ", ".join(needs), str(entry.level), "yes", summary


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
