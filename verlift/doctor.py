"""``verlift doctor``: what this machine has, what is missing, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table

from verlift.doctor_aliases import aliases

HOUSE = Path(__file__).resolve().parents[1]
"""The folder that our packages stand in, as a checkout or installed."""

PACKAGES = ("verlift", "parity_tests", "v1", "legacy", "compat", "runtime", "shared_algos", "configs")
MIN_LOGICAL_CPUS = 16
START_TIMEOUT_S = 180
GIB = 2**30
NEEDED_DISK_GIB = 5

Status = Literal["ok", "warn", "fail"]
STYLES: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    status: Status
    subject: str
    found: str
    way_out: str = ""
    """What to do; empty when all is well."""


app = typer.Typer()
app.command()(aliases)


@app.callback(invoke_without_command=True)
def doctor(
    context: typer.Context,
    start: Annotated[
        bool, typer.Option("--start", help="Start Ray and TransferQueue for real (half a minute).")
    ] = False,
) -> None:
    """Check versions, devices, disk, Ray, TransferQueue, and that no other package takes the place of ours."""
    if context.invoked_subcommand is not None:
        return
    findings = [*check_packages(), *check_versions(), *check_machine(), check_verl()]
    if start:
        findings.append(check_services())
    print_findings(findings, Console())
    raise typer.Exit(int(any(finding.status == "fail" for finding in findings)))


def print_findings(findings: Iterable[Finding], console: Console) -> None:
    """Print one row a finding."""
    table = Table("", "what", "found", "what to do", title="verlift doctor")
    for finding in findings:
        style = STYLES[finding.status]
        table.add_row(f"[{style}]{finding.status}[/]", finding.subject, finding.found, finding.way_out)
    console.print(table)


def check_packages(working_directory: Path | None = None) -> Iterator[Finding]:
    """Whether each of our import names means our folder, here and in Ray's workers.

    Ray puts the driver's working directory before all installed packages in the search path of its workers.
    """
    here = (working_directory or Path.cwd()).resolve()
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        places = [] if spec is None else list(spec.submodule_search_locations or [spec.origin or ""])
        found = Path(places[0]).resolve() if places else None
        if here != HOUSE and ((here / name / "__init__.py").exists() or (here / f"{name}.py").exists()):
            found = here / name if (here / name).is_dir() else here / f"{name}.py"
        if found == HOUSE / name:
            yield Finding("ok", f"import {name}", str(found))
        elif found is None:
            yield Finding("fail", f"import {name}", "not found", f"pip install -e . in {HOUSE}")
        else:
            way_out = (
                f"it hides {HOUSE / name}: rename it, take it off PYTHONPATH, or start verlift from another folder"
            )
            yield Finding("fail", f"import {name}", str(found), way_out)


def check_versions() -> Iterator[Finding]:
    """The installed version of each package that we require, against what ``pyproject.toml`` asks for."""
    try:
        requirements = importlib.metadata.requires("verlift") or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding("fail", "verlift", "not installed", f"pip install -e . -c constraints.txt in {HOUSE}")
        return
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield _check_version(requirement)


def _check_version(requirement: Requirement) -> Finding:
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return Finding("fail", requirement.name, "not installed", f"pip install '{requirement}'")
    if requirement.specifier.contains(version, prereleases=True):
        return Finding("ok", requirement.name, version)
    return Finding("fail", requirement.name, version, f"pip install '{requirement}'")


def check_machine() -> Iterator[Finding]:
    """Python, devices, cores, memory for Ray's object store, disk."""
    import torch

    yield Finding("ok", "python", sys.version.split()[0])
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        yield Finding("ok", "devices", names)
    else:
        yield Finding("ok", "devices", "CPU only: trainer.device=auto means cpu; use float32, as the tiny config does")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("ok", "cores", f"{cores}; a local Ray is told {max(MIN_LOGICAL_CPUS, cores)} logical CPUs")
    free = shutil.disk_usage(Path.cwd()).free / GIB
    low = free < NEEDED_DISK_GIB
    way_out = "checkpoints and Ray's spilled objects need room: free some, or set trainer.default_local_dir"
    yield Finding("warn" if low else "ok", "free disk here", f"{free:.1f} GiB", way_out if low else "")


def check_verl() -> Finding:
    """Whether verl itself is installed; we neither need it nor mind it."""
    try:
        version = importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        return Finding("ok", "verl", "not installed; verlift does not need it")
    return Finding("ok", "verl", f"{version}; verlift does not use it")


def check_services(timeout_s: float = START_TIMEOUT_S) -> Finding:
    """Start Ray and TransferQueue in a process of their own, which is ended if they do not come up."""
    command = [sys.executable, "-c", "from verlift.doctor import start_services; start_services()"]
    started = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        found = f"not up after {timeout_s:g} s"
        return Finding(
            "fail", "Ray and TransferQueue", found, "raise runtime.num_cpus: TransferQueue waits for a free CPU"
        )
    if process.returncode == 0:
        return Finding("ok", "Ray and TransferQueue", f"up in {time.monotonic() - started:.0f} s")
    last = output.strip().splitlines()[-1] if output.strip() else f"exit code {process.returncode}"
    return Finding("fail", "Ray and TransferQueue", last, "run `python -c 'import ray; ray.init()'` to see all of it")


def start_services() -> None:
    """Start Ray and TransferQueue as the tiny config asks, and end them."""
    import ray

    from runtime.cluster import start_ray
    from runtime.config import load_config
    from v1 import data_plane

    config = load_config("tiny").config
    start_ray(config)
    data_plane.start(config)
    ray.shutdown()
