"""``verlift parity report`` and what ``compare`` writes beside its JSON."""

import json
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from verlift.parity import app

NAMES = ["report.html", "report.json", "report.xml"]


@pytest.fixture(autouse=True)
def outside_of_github(monkeypatch):
    """CI of this project may be GitHub's, too."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run_folder(save, records, synthetic, edit, tmp_path):
    """What ``verlift parity run`` leaves: two captures side by side, here with a fault in the second."""
    faulty = synthetic()
    edit(faulty, (1, "advantage"), advantages=faulty[1, "advantage"].batch["advantages"] + 1)
    save("legacy", records)
    save("v1", faulty)
    return tmp_path


def invoke(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def written(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_a_run_folder_gets_all_three_files(run_folder):
    result = invoke("report", run_folder)
    assert result.exit_code == 1
    assert written(run_folder) == NAMES
    report = json.loads((run_folder / "report.json").read_text())
    assert report["line"] == result.stdout.splitlines()[-1]
    assert report["line"].startswith("PARITY DIVERGED at step 1 stage advantage field advantages")
    assert [side["capture"] for side in report["sides"]] == [str(run_folder / name) for name in ("legacy", "v1")]
    assert ElementTree.parse(run_folder / "report.xml").getroot().get("failures") == "1"
    assert (run_folder / "report.html").read_text().startswith("<!doctype html>")
    assert "::error" not in result.stdout


def test_only_what_is_asked_for_is_written(run_folder):
    left, right = run_folder / "legacy", run_folder / "v1"
    page = run_folder / "new" / "page.html"
    assert invoke("report", "--left", left, "--right", right, "--html", page).exit_code == 1
    assert written(page.parent) == ["page.html"]
    assert written(run_folder) == []


def test_compare_writes_page_and_junit_beside_the_json(run_folder):
    report = run_folder / "out" / "nightly.json"
    assert invoke("compare", run_folder / "legacy", run_folder / "v1", "--report", report).exit_code == 1
    assert written(report.parent) == ["nightly.html", "nightly.json", "nightly.xml"]


def test_github_gets_annotations_and_a_summary(run_folder, monkeypatch):
    summary = run_folder / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    lines = invoke("report", run_folder).stdout.splitlines()
    assert [line for line in lines if line.startswith("::")] == [
        f"::error title=Parity%3A step 1 advantage diverged::{lines[-1].removeprefix('PARITY DIVERGED at ')}"
    ]
    assert summary.read_text().startswith("before\n## Parity diverged: `legacy against v1`\n")
    assert "::error" not in invoke("report", run_folder, "--no-github").stdout


def test_annotations_can_be_asked_for_anywhere(run_folder):
    assert invoke("report", run_folder, "--github").stdout.startswith("::error ")


@pytest.mark.parametrize("arguments", [[], ["--left", "a"], ["somewhere", "--right", "b"]])
def test_what_to_compare_must_be_clear(arguments):
    result = invoke("report", *arguments)
    assert result.exit_code == 2
    assert "--left and --right" in result.stderr


def test_a_folder_without_captures_could_not_run(tmp_path):
    result = invoke("report", tmp_path)
    assert result.exit_code == 2
    assert "legacy has no manifest.json" in result.stderr
    assert written(tmp_path) == []


def test_what_could_not_run_is_annotated_too(tmp_path, monkeypatch):
    missing = f"{tmp_path}/legacy has no manifest.json"
    assert "::error" not in invoke("report", tmp_path).stdout
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    for arguments in (("report", tmp_path), ("compare", tmp_path / "legacy", tmp_path), ("check", tmp_path / "legacy")):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert result.stdout.startswith(f"::error title=Parity could not run::{tmp_path}/legacy")
    assert invoke("report", tmp_path).stdout.startswith(f"::error title=Parity could not run::{missing}")
    assert invoke("report", tmp_path, "--no-github").stdout == ""


def test_a_summary_that_cannot_be_written_is_no_divergence(run_folder, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/dev/null/summary.md")
    result = invoke("report", run_folder)
    assert result.exit_code == 2
    assert "could not write the summary" in result.stderr
