from __future__ import annotations

import os

import pytest

from runtime.errors import DataError
from runtime.user_code import load_object


@pytest.fixture
def module(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from __future__ import annotations\n"
        "import dataclasses, pathlib\n"
        "with (pathlib.Path(__file__).parent / 'runs').open('a') as log: log.write('x')\n"
        "@dataclasses.dataclass\n"
        "class Thing:\n    size: int = 3\n"
    )
    return file


def test_a_file_runs_once_however_its_path_is_spelt(module, monkeypatch):
    monkeypatch.chdir(module.parent)
    spellings = [module, "mine.py", f"file://{module}", os.path.join(module.parent, ".", "mine.py")]
    things = {load_object(spelling, "Thing", DataError) for spelling in spellings}
    assert len(things) == 1
    assert things.pop()().size == 3
    assert (module.parent / "runs").read_text() == "x"


def test_a_package_module_is_found_by_its_dotted_name():
    assert load_object("pkg://runtime.errors", "DataError", DataError) is DataError


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no Python file .*absent\.py"):
        load_object(tmp_path / "absent.py", "Thing", DataError)


def test_a_missing_name_comes_with_the_names_there_are(module):
    with pytest.raises(DataError, match=r"mine\.py has no 'Thin'; it defines .*'Thing'"):
        load_object(module, "Thin", DataError)


def test_a_file_that_fails_is_named_and_can_be_mended(module):
    module.write_text("1 / 0")
    with pytest.raises(DataError, match=r"mine\.py could not be imported: ZeroDivisionError"):
        load_object(module, "Thing", DataError)
    module.write_text("Thing = 7")
    assert load_object(module, "Thing", DataError) == 7


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(DataError, match=r"pkg://no\.such\.module could not be imported"):
        load_object("pkg://no.such.module", "Thing", DataError)
