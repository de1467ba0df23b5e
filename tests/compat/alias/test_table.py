"""The table: a row that cannot be used is named, and each row of ours can."""

import pytest

from compat.alias.errors import AliasError
from compat.alias.modules import resolve
from compat.alias.table import FILES, TABLE_FILE, Table, read_rows, table

HEAD = "module\tname\ttarget\tnote\n"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("verl.a\tb", "2 cells, not 4"),
        ("verl.a\tb\tx:y\t\t", "5 cells, not 4"),
        ("other.a\tb\tx:y\t", "must be verl or below"),
        ("verlift.a\tb\tx:y\t", "must be verl or below"),
        ("verl.a\tb\tverl.c:b\t", "round in circles"),
        ("verl.a\tb\tverl:b\t", "round in circles"),
        ("verl.a\tb\t!\t", "says why"),
        ("verl.a\tb\t\t", "must be given"),
    ],
)
def test_a_bad_row_is_named(line, why):
    with pytest.raises(AliasError, match=f"line 3.*{why}"):
        list(read_rows(f"{HEAD}verl.x\ty\tx:y\t\n{line}\n"))


def test_an_empty_last_cell_may_be_missing():
    assert Table(read_rows(f"{HEAD}verl.a\tb\tx:y\n")).row("verl.a", "b").note == ""


def test_parents_are_modules_and_a_wholly_refused_one_is_not():
    rows = f"{HEAD}verl.a.b.c\tx\ty:z\t\nverl.m\t(module)\t!\tno\nverl.n\t(module)\t!\tno\nverl.n.o\tx\ty:z\t\n"
    modules = Table(read_rows(rows))
    assert [name for name in modules.modules if modules.has_module(name)] == [
        "verl",
        "verl.a.b",
        "verl.a",
        "verl.a.b.c",
        "verl.n",
        "verl.n.o",
    ]
    assert modules.children("verl") == ["a", "n"]


def test_the_nearest_refusal_speaks():
    rows = f"{HEAD}verl.m\t(module)\t!\tall of m\nverl.m.sub\tx\t!\tonly x\nverl.m.sub\tok\ty:z\t\n"
    modules = Table(read_rows(rows))
    assert modules.refusal("verl.m.sub", "x").note == "only x"
    assert modules.refusal("verl.m.sub", "y").note == "all of m"
    assert modules.refusal("verl.m.sub", "ok") is None


SERVED = [row for rows in table().modules.values() for row in rows.values() if not row.is_refused]


@pytest.mark.parametrize("module", sorted({row.module for row in SERVED}))
def test_each_target_is_there(module):
    """Every name of the table leads to an object of ours."""
    missing = {}
    for row in table().modules[module].values():
        if row.is_refused:
            continue
        try:
            value = resolve(row.target)
        except (ImportError, AttributeError) as error:
            missing[row.name] = f"{row.target}: {error}"
        else:
            assert row.name != FILES or value.__path__
    assert missing == {}


def test_no_name_stands_twice_and_the_table_is_sorted():
    names = [(row.module, row.name) for row in read_rows(TABLE_FILE.read_text())]
    assert len(set(names)) == len(names)
    assert names == sorted(names)
