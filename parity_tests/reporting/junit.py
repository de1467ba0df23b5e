"""JUnit XML: a test case a stage and step, for every CI that shows test results.

The form is that of Ant's schema, the strictest in use, which Jenkins, GitLab and GitHub's reporters read too.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from parity_tests.reporting.model import Report, StageFields, stages_of
from parity_tests.reporting.terminal import notes_of
from parity_tests.storage import written_beside

SUITE = "verlift parity"
VACUITY = "the run could have failed"
_TOLD = 100
"""Fields told in a failure; report.json has all."""

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(report: Report, path: Path) -> None:
    """Write the report as JUnit XML, beside and renamed."""
    tree = ElementTree.ElementTree(as_junit(report))
    ElementTree.indent(tree)
    with written_beside(path) as temporary:
        tree.write(temporary, encoding="utf-8", xml_declaration=True)


def as_junit(report: Report) -> Element:
    """The ``testsuites`` element."""
    verdict, stages = report.verdict, stages_of(report.verdict)
    failures = sum(bool(stage.failed) for stage in stages) + bool(verdict.vacuous)
    counts = {"tests": str(len(stages) + 1), "failures": str(failures), "errors": "0", "time": "0"}
    suites = Element("testsuites", {"name": SUITE, **counts})
    made = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    suite = SubElement(suites, "testsuite", {"name": SUITE, "timestamp": made, "hostname": "localhost", **counts})
    properties = SubElement(suite, "properties")
    for side in report.sides:
        SubElement(properties, "property", name=legal(f"capture {side.label}"), value=legal(side.capture))
    for stage in stages:
        _stage_case(suite, report, stage)
    _vacuity_case(suite, report)
    SubElement(suite, "system-out").text = legal("\n".join([*notes_of(verdict), verdict.line]))
    SubElement(suite, "system-err")
    return suites


def legal(text: str) -> str:
    """``text`` without the characters that XML 1.0 has no way to hold: each becomes the replacement character."""
    return _NOT_XML.sub("\ufffd", text)


def _stage_case(suite: Element, report: Report, stage: StageFields) -> None:
    case = _case(suite, report, f"step {stage.step} {stage.stage}")
    if stage.failed:
        lines = [report.verdict.describe(field) for field in stage.failed[:_TOLD]]
        if len(stage.failed) > _TOLD:
            lines.append(f"and {len(stage.failed) - _TOLD} more fields")
        failure = SubElement(case, "failure", type=stage.status.value, message=legal(lines[0]))
        failure.text = legal("\n".join(lines))


def _vacuity_case(suite: Element, report: Report) -> None:
    case = _case(suite, report, VACUITY)
    if reasons := report.verdict.vacuous:
        failure = SubElement(case, "failure", type="vacuous", message=legal("; ".join(reasons)))
        failure.text = legal("\n".join(reasons))


def _case(suite: Element, report: Report, name: str) -> Element:
    return SubElement(suite, "testcase", classname=legal(report.comparison), name=legal(name), time="0")
