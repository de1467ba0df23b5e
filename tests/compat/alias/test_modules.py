"""Every form of import that old code uses, on a small table."""

from __future__ import annotations

import importlib
import importlib.resources
import importlib.util
import inspect
import pickle
import pydoc
import runpy
import sys
import threading
from fractions import Fraction

import pytest

from compat.alias import AliasAttributeError, AliasError, finder

pytestmark = pytest.mark.usefixtures("small_table")


def run(code: str) -> dict:
    names: dict = {}
    exec(code, names)
    return names


@pytest.mark.parametrize(
    "code",
    [
        "import verl; it = verl.Fraction",
        "from verl import Fraction as it",
        "from verl.numbers import Fraction as it",
        "import verl.numbers as numbers; it = numbers.Fraction",
        "from verl import numbers; it = numbers.Fraction",
        "import verl; it = verl.numbers.Fraction",
        "from verl.numbers import *; it = Fraction",
        "import importlib; it = importlib.import_module('verl.numbers').Fraction",
    ],
)
def test_each_form_of_import_reaches_the_object(code):
    assert code.startswith("from verl.numbers import *") or run(code)["it"] is Fraction
    if code.endswith("it = Fraction"):
        with pytest.raises(ModuleNotFoundError, match="no_such_module_of_ours"):  # a star imports all that is listed
            run(code)


def test_star_gives_what_is_served():
    names = run("from verl.numbers.deep import *")
    assert names["sqrt"](9) == 3
    assert {name for name in names if not name.startswith("__")} == {"sqrt"}


def test_an_attribute_of_an_object_is_a_target():
    assert run("from verl.numbers import one")["one"](0.5) == Fraction(1, 2)


def test_nothing_of_ours_is_imported_before_a_name_is_used():
    sys.modules.pop("colorsys", None)
    from compat.alias.table import Row, table

    table().modules["verl.numbers"]["late"] = Row("verl.numbers", "late", "colorsys:rgb_to_hsv", "")
    module = importlib.import_module("verl.numbers")
    assert "colorsys" not in sys.modules
    assert module.late is sys.modules["colorsys"].rgb_to_hsv
    assert vars(module)["late"] is module.late


def test_an_unknown_name_is_refused_with_names_near_it():
    module = importlib.import_module("verl.numbers")
    assert not hasattr(module, "Fractions")
    with pytest.raises(AliasAttributeError, match=r"near names served in verl\.numbers: Fraction"):
        _ = module.Fractions
    with pytest.raises(AliasError, match=r"verl\.numbers\.Fractions is not served.*Fraction.*verlift doctor aliases"):
        run("from verl.numbers import Fractions")


def test_a_name_that_another_module_serves_is_pointed_out():
    with pytest.raises(AliasError, match=r"sqrt is served in verl\.numbers\.deep"):
        run("from verl.numbers import sqrt")


@pytest.mark.parametrize("code", ["from verl.numbers import Old", "import verl.numbers.Old"])
def test_a_refused_name_gives_its_note(code):
    with pytest.raises(AliasError, match=r"it went with 0\.4: use Fraction"):
        run(code)


def test_a_refused_name_is_no_attribute():
    assert not hasattr(importlib.import_module("verl.numbers"), "Old")


@pytest.mark.parametrize(
    "code",
    [
        "import verl.mega",
        "from verl.mega import x",
        "from verl import mega",
        "import verl.mega.inner",
        "import verl.mega.y",
    ],
)
def test_a_refused_module_gives_its_note(code):
    with pytest.raises(AliasError, match="no Megatron: set strategy=fsdp"):
        run(code)


def test_code_that_tries_an_import_goes_on():
    assert run("try:\n    from verl.mega import x\nexcept ImportError:\n    x = None")["x"] is None


def test_an_unknown_module_is_refused():
    with pytest.raises(AliasError, match="near names served in verl: numbers"):
        run("import verl.nunbers.deep")


def test_a_module_that_stands_for_a_whole_one():
    whole = importlib.import_module("verl.whole")
    assert whole.median([1, 2, 9]) == 2
    assert whole.half is Fraction
    assert not hasattr(whole, "mean")
    assert {"median", "half"} <= set(whole.__all__)
    assert "mean" not in whole.__all__


def test_whoever_asks_whether_there_is_a_module_is_answered():
    assert importlib.util.find_spec("verl.numbers.deep").name == "verl.numbers.deep"
    assert importlib.util.find_spec("verl.nothing") is None
    assert importlib.util.find_spec("verl.mega") is None


def test_a_target_that_cannot_be_imported_says_so_itself():
    with pytest.raises(ModuleNotFoundError, match="no_such_module_of_ours"):
        run("from verl.numbers import broken")


def test_objects_pickle_by_their_real_module_and_are_found_by_the_old_one():
    numbers = importlib.import_module("verl.numbers")
    assert b"verl" not in pickle.dumps(numbers.Fraction)
    assert pickle.loads(b"cverl.numbers\nFraction\n.") is Fraction


def test_inspection_and_help():
    deep = importlib.import_module("verl.numbers.deep")
    assert dict(inspect.getmembers(deep, callable))["sqrt"](4) == 2
    assert "verl.numbers.deep" in pydoc.render_doc(deep)
    assert not hasattr(deep, "__file__")
    assert inspect.getmodule(Fraction).__name__ == "fractions"


def test_a_patch_stays_on_its_module_and_a_reload_undoes_it():
    numbers, top = importlib.import_module("verl.numbers"), importlib.import_module("verl")
    numbers.Fraction = "patched"
    numbers.added = 1
    assert run("from verl.numbers import Fraction")["Fraction"] == "patched"
    assert top.Fraction is Fraction
    importlib.reload(numbers)
    assert numbers.Fraction is Fraction
    assert numbers.added == 1


def test_files_of_a_package_are_ours():
    files = importlib.resources.files("verl.configs")
    assert files.joinpath("ppo_trainer.yaml").is_file()
    assert importlib.util.find_spec("verl.numbers").loader.get_resource_reader("verl.numbers") is None


def test_a_program_is_run_by_name(monkeypatch, capsys):
    monkeypatch.setattr("graphlib.program", lambda: print("ran", *sys.argv), raising=False)
    monkeypatch.setattr(sys, "argv", ["python", "a=1"])
    with pytest.raises(SystemExit) as ended:
        runpy._run_module_as_main("verl.program")
    assert ended.value.code is None
    assert capsys.readouterr().out == "ran verl/program.py a=1\n"


@pytest.mark.parametrize("name", ["verl.numbers", "verl.mega", "verl.nothing"])
def test_a_module_that_is_no_program_is_refused(name):
    with pytest.raises(ImportError) as refused:
        runpy.run_module(name, run_name="__main__")
    assert "verl alias" in str(refused.value) or "cannot be directly executed" in str(refused.value)


def test_threads_that_import_at_once_get_one_object():
    found, barrier = [], threading.Barrier(8)

    def look() -> None:
        barrier.wait()
        found.append(importlib.import_module("verl.numbers.deep").sqrt)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({id(value) for value in found}) == 1


def test_other_modules_are_left_alone():
    assert finder.AliasFinder.find_spec("verlift") is None
    assert finder.AliasFinder.find_spec("verl_of_mine") is None


def test_modules_of_the_environment_are_imported_with_verl(tmp_path, monkeypatch):
    (tmp_path / "my_pieces.py").write_text("from verl import Fraction\nhalf = Fraction(1, 2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "my_pieces, math")
    sys.modules.pop("verl", None)
    importlib.import_module("verl")
    assert sys.modules.pop("my_pieces").half * 2 == 1
