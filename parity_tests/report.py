"""The front of reporting: tell a verdict in the terminal, in files, and to GitHub."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from parity_tests.reporting.document import write_document
from parity_tests.reporting.github import annotate, append_summary
from parity_tests.reporting.junit import write_junit
from parity_tests.reporting.model import Report
from parity_tests.reporting.page import write_page
from parity_tests.reporting.terminal import print_report
from parity_tests.reporting.workflow import is_wanted
from parity_tests.verdict import Verdict

__all__ = ["Outputs", "Report", "print_report", "tell", "write_report"]


@dataclass(frozen=True)
class Outputs:
    """Files to write; None writes none."""

    json: Path | None = None
    junit: Path | None = None
    html: Path | None = None

    @classmethod
    def beside(cls, report: Path) -> Outputs:
        """All three: ``report.json``, and under its name ``report.xml`` and ``report.html``."""
        return cls(report, report.with_suffix(".xml"), report.with_suffix(".html"))


def write_report(verdict: Verdict, path: Path) -> None:
    """Write ``report.json`` of a verdict alone, without what its captures add."""
    write_document(Report(verdict), path)


def tell(report: Report, outputs: Outputs, github: bool | None = None, verbose: bool = False) -> int:
    """Write the files, annotate, and print the table and the last line; return the exit code.

    github: print annotations; None does so where GitHub Actions runs this. The summary of a job is appended to whenever
    ``$GITHUB_STEP_SUMMARY`` names its file.
    Raises CaptureError when a file cannot be written; nothing half-written is left.
    """
    if outputs.json:
        write_document(report, outputs.json)
    if outputs.junit:
        write_junit(report, outputs.junit)
    if outputs.html:
        write_page(report, outputs.html)
    if is_wanted(github):
        annotate(report)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        append_summary(report, Path(summary))
    # Last, because the last line is the verdict.
    print_report(report.verdict, verbose=verbose)
    return report.verdict.exit_code
