"""The alias with a table of the test's own, taken away again afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat.alias import finder
from compat.alias import table as tables

ROWS = """module	name	target	note
verl	__version__	compat.alias.table:ROOT
verl	Fraction	fractions:Fraction
verl.numbers	Fraction	fractions:Fraction
verl.numbers	one	fractions:Fraction.from_float
verl.numbers	Old	!	it went with 0.4: use Fraction
verl.numbers	broken	no_such_module_of_ours:Thing
verl.numbers.deep	sqrt	math:sqrt
verl.whole	(module)	statistics
verl.whole	mean	!	it is not served: use fmean
verl.whole	half	fractions:Fraction
verl.mega	(module)	!	this build has no Megatron: set strategy=fsdp
verl.mega.inner	thing	!	this build has no Megatron: set strategy=fsdp
verl.program	(main)	graphlib:program
verl.configs	(files)	configs
"""


@pytest.fixture
def use_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """``use_table(text)`` installs the alias with that table."""
    file = tmp_path / "names.tsv"

    def use(text: str) -> None:
        file.write_text(text)
        monkeypatch.setattr(tables, "TABLE_FILE", file)
        tables.table.cache_clear()
        finder.install()

    yield use
    tables.table.cache_clear()
    if finder.is_installed():
        sys.meta_path.remove(finder.AliasFinder)
    for name in [name for name in sys.modules if name == "verl" or name.startswith("verl.")]:
        del sys.modules[name]


@pytest.fixture
def small_table(use_table: Callable[[str], None]) -> None:
    use_table(ROWS)
