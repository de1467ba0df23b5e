"""``verlift doctor aliases``: each name that recipes import is served, or refused with a reason."""

import json

import pytest

from compat.alias.coverage import Coverage, coverage, judge
from compat.alias.table import Table, read_rows, table
from verlift.main import main

ROWS = """module	name	target	note
verl	DataProto	fractions:Fraction
verl.utils.fs	copy	shutil:copy
verl.utils.numbers	(module)	statistics
verl.utils.numbers	mean	!	use fmean
verl.megatron	(module)	!	no Megatron here
"""


@pytest.mark.parametrize(
    ("module", "name", "status", "reason"),
    [
        ("verl", "DataProto", "served", ""),
        ("verl", "(module)", "served", ""),
        ("verl", "utils", "served", ""),
        ("verl", "trainer", "missing", ""),
        ("verl.utils", "fs", "served", ""),
        ("verl.utils.fs", "copy", "served", ""),
        ("verl.utils.fs", "copies", "missing", ""),
        ("verl.utils.numbers", "(module)", "served", ""),
        ("verl.utils.numbers", "median", "served", ""),
        ("verl.utils.numbers", "mean", "refused", "use fmean"),
        ("verl.utils.numbers", "median_of_all", "missing", ""),
        ("verl.megatron", "(module)", "refused", "no Megatron here"),
        ("verl.megatron.deep", "anything", "refused", "no Megatron here"),
        ("verl", "megatron", "refused", "no Megatron here"),
        ("verl.trainer", "(module)", "missing", ""),
    ],
)
def test_each_status(module, name, status, reason):
    assert judge(Table(read_rows(ROWS)), module, name) == (status, reason)


def test_only_widely_used_names_are_gaps():
    assert Coverage("verl", "x", 2, "missing", "").is_gap
    assert not Coverage("verl", "x", 1, "missing", "").is_gap
    assert not Coverage("verl", "x", 9, "refused", "why").is_gap


def test_no_widely_used_name_is_missing():
    names = list(coverage(table()))
    assert len(names) == 355
    assert [(name.module, name.name) for name in names if name.is_gap] == []


def run(capfd, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(("doctor", "aliases", *arguments))
    return int(ended.value.code or 0), capfd.readouterr().out


def test_json_for_programs(capfd):
    code, out = run(capfd, "--format", "json")
    answer = json.loads(out)
    assert code == int(any(name["status"] == "missing" and name["files"] >= 2 for name in answer["names"]))
    assert sum(answer["counts"].values()) == len(answer["names"]) == 355
    assert set(answer["names"][0]) == {"module", "name", "files", "status", "reason"}


def test_text_for_people(capfd):
    _, out = run(capfd)
    assert "verl.single_controller.ray" in out
    assert "refused verl.workers.megatron_workers:" in out
