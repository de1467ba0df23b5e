"""The doctor sees what is there and what is not."""

import io
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from rich.console import Console

from verlift import doctor
from verlift.doctor import Finding, check_machine, check_packages, check_verl, print_findings


def test_every_package_is_ours():
    findings = list(check_packages())
    assert len(findings) == len(doctor.PACKAGES)
    assert {finding.status for finding in findings} == {"ok"}


@pytest.mark.parametrize("path", ["compat/__init__.py", "v1.py"])
def test_a_package_in_the_working_directory_is_a_fault(tmp_path, path):
    """Ray's workers would import it instead of ours."""
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True)
    file.touch()
    (wrong,) = [finding for finding in check_packages(tmp_path) if finding.status != "ok"]
    assert wrong.status == "fail"
    assert wrong.subject == f"import {Path(path).parts[0].removesuffix('.py')}"
    assert str(tmp_path) in wrong.found
    assert "rename it" in wrong.way_out


def test_a_plain_folder_of_the_same_name_is_no_fault(tmp_path):
    (tmp_path / "configs").mkdir()
    assert {finding.status for finding in check_packages(tmp_path)} == {"ok"}


@pytest.mark.parametrize(
    ("requirement", "status"), [("rich>=1", "ok"), ("rich>=9999", "fail"), ("no-such-package-here>=1", "fail")]
)
def test_versions_are_held_against_what_is_asked_for(requirement, status):
    finding = doctor._check_version(Requirement(requirement))
    assert finding.status == status
    assert ("pip install" in finding.way_out) is (status == "fail")


def test_the_machine_and_verl_are_reported():
    subjects = {finding.subject for finding in check_machine()}
    assert subjects == {"python", "devices", "cores", "free disk here"}
    assert check_verl().status == "ok"


def test_services_that_do_not_come_up_are_ended_and_reported():
    finding = doctor.check_services(timeout_s=0.5)
    assert finding.status == "fail"
    assert "not up after 0.5 s" in finding.found


def test_the_table_has_the_way_out():
    out = io.StringIO()
    findings = [Finding("ok", "python", "3"), Finding("fail", "ray", "1.0", "pip install 'ray>=2'")]
    print_findings(findings, Console(file=out, width=120))
    assert "pip install 'ray>=2'" in out.getvalue()


@pytest.mark.ray
@pytest.mark.slow
def test_ray_and_transfer_queue_start():
    assert doctor.check_services().status == "ok"
