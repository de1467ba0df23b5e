"""report.json follows its schema whatever the verdict; JUnit XML and GitHub read what is meant."""

import dataclasses
import json
import math
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator

from parity_tests.compare import compare
from parity_tests.report import Report, write_report
from parity_tests.reporting.document import as_document, schema, write_document
from parity_tests.reporting.github import MOST_ANNOTATIONS, annotation_lines, summary
from parity_tests.reporting.junit import VACUITY, write_junit
from parity_tests.reporting.workflow import error
from parity_tests.verdict import FieldVerdict, Kind, Status, Tolerance, Verdict
from runtime.trainer.hooks import StageRecord

LOOSE = {"old_log_prob": Tolerance(max_abs=10, mean_abs=10)}


def shifted(place, field, by):
    """A fault: ``by`` is added to a column of one record."""

    def fault(records):
        batch = records[place].batch
        records[place] = dataclasses.replace(records[place], batch=batch.with_columns({field: batch[field] + by}))

    return fault


def replaced(place, **parts):
    """A fault: parts of one record are others."""
    return lambda records: records.update({place: dataclasses.replace(records[place], **parts)})


FAULTS = {
    "none": lambda _: None,
    "values": shifted((1, "advantage"), "advantages", 0.25),
    "nan": shifted((1, "advantage"), "advantages", math.nan),
    "tokens": shifted((2, "rollout"), "responses", 1),
    "within": shifted((1, "old_log_prob"), "entropy", 1e-6),
    "a stage": lambda records: records.pop((2, "reward")),
    "a series": replaced((1, "update_actor"), series={"actor/pg_loss": (1.0, -0.0)}),
    "weights": replaced((2, "update_actor"), digests={"actor.layer.0": "0" * 64}),
}


@pytest.fixture(scope="module", params=FAULTS)
def report(request, save_module, synthetic):
    """One comparison a fault, told in every test."""
    faulty = synthetic()
    FAULTS[request.param](faulty)
    sides = save_module("legacy", synthetic()), save_module("v1", faulty)
    return Report.of(compare(*sides, tolerances=LOOSE), *sides)


@pytest.fixture(scope="module")
def validator():
    Draft202012Validator.check_schema(schema())
    return Draft202012Validator(schema())


def test_every_report_follows_the_schema(report, validator, tmp_path):
    write_document(report, tmp_path / "report.json")
    document = json.loads((tmp_path / "report.json").read_text())
    assert [error.message for error in validator.iter_errors(document)] == []
    assert document["verdict"] == report.outcome
    assert len(document["fields"]) == len(report.verdict.fields)
    write_report(report.verdict, tmp_path / "bare.json")
    assert validator.is_valid(json.loads((tmp_path / "bare.json").read_text()))


def test_reports_of_every_other_kind_follow_the_schema(hostile, validator):
    """Vacuous, without captures, with one, with excerpts, and with nothing in it."""
    verdict = compare(*hostile)
    for report in (
        Report(Verdict(("baseline", "now"), ())),
        Report(dataclasses.replace(verdict, fields=(), vacuous=("no step was run",))),
        Report.of(verdict, None, hostile[1]),
        Report.of(verdict, *hostile),
    ):
        assert [error.message for error in validator.iter_errors(as_document(report))] == []


def test_the_schema_describes_every_property_and_allows_no_other(hostile, validator):
    def described(node):
        for name, entry in node.get("properties", {}).items():
            assert entry.get("description"), name
            described(entry)
            described(entry.get("items", {}))

    described(validator.schema)
    for definition in validator.schema["$defs"].values():
        assert definition["description"]
        described(definition)
    names = {field.name for field in dataclasses.fields(FieldVerdict)}
    assert names == set(validator.schema["$defs"]["field"]["properties"])
    document = as_document(Report.of(compare(*hostile), *hostile))
    for change in ({"version": 1}, {"verdict": "fine"}, {"surprise": 1}, {"exit_code": 2}, {"labels": ["one"]}):
        assert not validator.is_valid(document | change), change


def test_a_report_has_one_line_a_field(report, tmp_path):
    """So that it can be searched with grep, and two reports with diff."""
    write_document(report, tmp_path / "report.json")
    rows = [line for line in (tmp_path / "report.json").read_text().splitlines() if line.startswith("  {")]
    assert [json.loads(row.rstrip(","))["field"] for row in rows] == [field.field for field in report.verdict.fields]


# JUnit. What Ant's schema, the strictest, asks of each element: attributes, and children in this order.

REQUIRED = {
    "testsuites": set(),
    "testsuite": {"name", "timestamp", "hostname", "tests", "failures", "errors", "time"},
    "property": {"name", "value"},
    "testcase": {"name", "classname", "time"},
    "failure": {"type"},
}
CHILDREN = {"testsuites": ["testsuite"], "testsuite": ["properties", "testcase", "system-out", "system-err"]}


def junit_of(report, tmp_path):
    write_junit(report, tmp_path / "report.xml")
    return ElementTree.parse(tmp_path / "report.xml").getroot()


def test_junit_has_a_case_a_stage_and_step(report, tmp_path):
    root = junit_of(report, tmp_path)
    suite = root.find("testsuite")
    for element in root.iter():
        assert set(element.attrib) >= REQUIRED.get(element.tag, set()), element.tag
        kinds = list(dict.fromkeys(child.tag for child in element))
        assert kinds == [kind for kind in CHILDREN.get(element.tag, kinds) if kind in kinds]
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    stages = {f"step {field.step} {field.stage}" for field in report.verdict.fields}
    assert set(cases) == stages | {VACUITY}
    assert {case.get("classname") for case in cases.values()} == {"legacy against v1"}
    failed = {f"step {field.step} {field.stage}" for field in report.verdict.fields if field.status.failed}
    failed |= {VACUITY} if report.verdict.vacuous else set()
    assert {name for name, case in cases.items() if case.find("failure") is not None} == failed
    for counted in (root, suite):
        assert (int(counted.get("tests")), int(counted.get("failures"))) == (len(cases), len(failed))
    if first := report.verdict.first:
        failure = cases[f"step {first.step} {first.stage}"].find("failure")
        assert failure.get("message") == report.verdict.describe(first)
        assert failure.get("type") == first.status.value


def verdict_with(left, fields=1, vacuous=()):
    failed = [FieldVerdict(step, "reward", "f", Kind.OBJECT, Status.DIVERGED).at(left=left) for step in range(fields)]
    return Verdict(("a", "b"), tuple(failed), vacuous)


def test_junit_holds_what_xml_cannot(tmp_path):
    root = junit_of(Report(verdict_with("\x00<&]]>\ud800 é", vacuous=("none\x00", "at all"))), tmp_path)
    failure, vacuous = root.iter("failure")
    assert r"a \x00<&]]>\ud800 é, b None" in failure.text, "escaped on the one line that programs read"
    assert (vacuous.get("type"), vacuous.get("message")) == ("vacuous", "none\ufffd; at all")


def test_reports_of_several_things_are_told_apart(hostile, validator, tmp_path):
    """Those of `parity check`: one a trainer, each against its baseline."""
    report = Report.of(dataclasses.replace(compare(*hostile), labels=("baseline", "now")), *hostile, subject="v1")
    assert {case.get("classname") for case in junit_of(report, tmp_path).iter("testcase")} == {
        "v1: baseline against now"
    }
    assert all(decoded(line)[1].startswith("Parity v1: ") for line in annotation_lines(report))
    assert next(summary(report)) == "## Parity diverged: `v1: baseline against now`"
    assert as_document(report)["subject"] == "v1"
    assert validator.is_valid(as_document(report))


# GitHub.


def decoded(line):
    """As the runner reads a command: properties up to the second ``::``, then the message."""
    _, properties, message = line.split("::", 2)
    command, _, title = properties.partition(" title=")
    for code, sign in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        title = title.replace(code, sign)
        message = message.replace(code, sign) if sign not in ":," else message
    return command, title, message


@pytest.mark.parametrize("text", ["plain", "50 %", "a\r\nb", "%0A", "x::y, z=1", "::error::no"])
def test_annotations_are_read_back_by_the_runner(text):
    line = error(text, text)
    assert len(line.splitlines()) == 1
    assert not {":", ","} & set(line.split("title=")[1].split("::")[0])
    assert decoded(line) == ("error", text, text)


def test_a_stage_that_failed_is_annotated_with_its_first_field(report):
    commands = [decoded(line) for line in annotation_lines(report)]
    told = [message for _, title, message in commands if title != "Parity: vacuous"]
    first = {}
    for field in report.verdict.fields:
        if field.status.failed:
            first.setdefault((field.step, field.stage), report.verdict.describe(field))
    assert told == list(first.values())


def test_no_more_annotations_than_github_shows():
    lines = list(annotation_lines(Report(verdict_with("x", fields=50, vacuous=("why",)))))
    assert len(lines) == MOST_ANNOTATIONS
    assert "42 more stages" in lines[-2]
    assert "why" in lines[-1]


def test_the_summary_is_markdown_whatever_a_value_holds():
    rows = [line for line in summary(Report(verdict_with("a | `b` <b>\n# c"))) if line.startswith("|")]
    field = rows[-1]
    assert "`` a \\| `b` <b> # c ``" in field
    assert field.replace("\\|", "").count("|") == rows[-2].count("|") == 10


def test_the_summary_tells_verdict_stages_and_fields(report):
    text = "\n".join(summary(report))
    assert report.verdict.line.split(":")[0] in text
    for name in {field.stage for field in report.verdict.fields}:
        assert f"| `{name}` |" in text
    for field in report.verdict.fields:
        assert field.status is Status.EQUAL or f"`{field.field}`" in text


def test_a_stage_record_on_one_side_is_told_as_missing(save, records, synthetic, tmp_path):
    faulty = synthetic()
    faulty[2, "mine"] = StageRecord(2, "mine", series={"x": (1.0,)})
    report = Report(compare(save("legacy", records), save("v1", faulty)))
    case = next(case for case in junit_of(report, tmp_path).iter("testcase") if case.get("name") == "step 2 mine")
    assert case.find("failure").get("type") == "missing"
    assert all(line.startswith("::error") for line in annotation_lines(report))
