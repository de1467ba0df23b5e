"""What public recipes import, imported: each name arrives, or is refused with its reason."""

from __future__ import annotations

import importlib

import pytest

from compat.alias import AliasError
from compat.alias.coverage import coverage
from compat.alias.table import MODULE, TABLE_FILE, table

NAMES = list(coverage(table()))


@pytest.fixture
def alias(use_table):
    use_table(TABLE_FILE.read_text())


def import_name(module: str, name: str) -> object:
    """``from module import name`` or ``import module``."""
    if name == MODULE:
        return importlib.import_module(module)
    names: dict[str, object] = {}
    exec(f"from {module} import {name}", names)
    return names[name]


@pytest.mark.usefixtures("alias")
@pytest.mark.parametrize("module", sorted({name.module for name in NAMES}))
def test_each_imported_name_arrives_or_is_refused(module):
    for name in (name for name in NAMES if name.module == module):
        if name.status == "served":
            assert import_name(module, name.name) is not None
        else:
            with pytest.raises(AliasError) as refused:
                import_name(module, name.name)
            assert name.reason in str(refused.value)


REFUSED = [row for rows in table().modules.values() for row in rows.values() if row.is_refused]


@pytest.mark.usefixtures("alias")
@pytest.mark.parametrize("module", sorted({row.module for row in REFUSED}))
def test_each_refusal_is_told_and_names_a_way_out(module):
    """A row below a module that is refused as a whole would never be seen."""
    for row in (row for row in REFUSED if row.module == module):
        if row.name == MODULE and table().has_module(module):
            continue  # it speaks for the names of the module that have no row, beside others that are served
        with pytest.raises(AliasError) as refused:
            import_name(module, row.name)
        assert row.note in str(refused.value)
        assert len(row.note.split()) > 5


def test_a_star_brings_what_old_trainers_imported_themselves():
    """Recipes that begin with ``from verl.trainer.ppo.ray_trainer import *`` use numpy and the like by it."""
    names = {
        module: set(table().served_names(f"verl.trainer.ppo.{module}")) for module in ("ray_trainer", "core_algos")
    }
    assert {"np", "torch", "defaultdict", "OmegaConf", "uuid", "deepcopy", "tqdm", "ray"} <= names["ray_trainer"]
    assert {"np", "torch", "defaultdict"} <= names["core_algos"]
