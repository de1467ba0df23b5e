"""The algorithm core against verl 0.9.1: the same batches, in one run, jagged tensors in and out.

Needs ``make oracle``. Results are compared before anything is timed. Read the ratios: absolute times of a shared
machine mean little. How memory is measured: ``benchmarks.measure.peak_mebibytes``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product, starmap
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks import sides
from benchmarks.batch import Case, draw
from benchmarks.measure import CLOCKS, available_mebibytes, milliseconds, peak_mebibytes

ORACLE = Path(__file__).resolve().parent.parent / ".oracle"
ESTIMATORS = ("grpo", "gae", "rloo", "reinforce_plus_plus")
LOSSES = ("vanilla",)
HEADLINE = Case(1024, 8192, 0.16)
QUICK = {**dict.fromkeys(ESTIMATORS, (Case(256, 2048, 0.5), HEADLINE)), "vanilla": (Case(256, 2048, 0.31),)}
FULL = tuple(starmap(Case, product((256, 1024, 4096), (2048, 8192, 16384), (0.1, 0.16, 0.31, 0.5, 0.9))))
GROWTH_ROWS = (64, 256, 1024, 4096, 16384)
PADDED_COPIES = 16
"""No side of a case holds more ``[rows, width]`` float32 tensors at once; a case that would not fit is left out."""
TOLERANCE = 2e-3
"""verl computes in float32, and its running sums over thousands of tokens lose digits."""


@dataclass(frozen=True)
class Result:
    """One row of the table."""

    name: str
    case: Case
    tokens: int
    our_ms: float
    verl_ms: float
    our_mib: float | None
    verl_mib: float | None
    largest_difference: float

    @property
    def cells(self) -> tuple[str, ...]:
        """As the table shows them."""
        memory = ("-", "-", "-")
        if self.our_mib is not None and self.verl_mib is not None:
            memory = (f"{self.our_mib:.0f}", f"{self.verl_mib:.0f}", f"{self.our_mib / max(self.verl_mib, 1e-9):.2f}")
        times = (f"{self.our_ms:.1f}", f"{self.verl_ms:.1f}", f"{self.verl_ms / self.our_ms:.1f}")
        case = (str(self.case.rows), str(self.case.width), str(self.case.fill), f"{self.tokens:,}")
        return (self.name, *case, *times, *memory, f"{self.largest_difference:.0e}")


HEADINGS = (
    *("", "rows", "width", "fill", "tokens", "ours ms", "verl ms", "verl / ours"),
    *("ours MiB", "verl MiB", "ours / verl", "differ by"),
)


def main() -> None:
    """Print the comparison, then how our time grows with the tokens, for each device."""
    arguments = _arguments()
    if not ORACLE.is_dir():
        sys.exit("verl 0.9.1 is not here; run `make oracle` first")
    sys.path.insert(0, str(ORACLE))
    torch.set_num_threads(arguments.threads)
    console = Console(width=None if sys.stdout.isatty() else 140)
    for device in arguments.devices:
        load = os.getloadavg()[0]
        results = _compare_all(arguments, device, console)
        conditions = f"{device}, {arguments.threads} threads, {arguments.clock} clock"
        table = Table(*HEADINGS, title=f"{conditions}, load {load:.1f} to {os.getloadavg()[0]:.1f}")
        for result in results:
            table.add_row(*result.cells)
        console.print(table)
        grown = {name: growth(name, device, arguments) for name in arguments.only if name in ESTIMATORS}
        for name, points in grown.items():
            steps = ", ".join(f"{tokens:,}: {ms:.1f} ms" for tokens, ms in points)
            powers = f"{exponent(points):.2f}, of the largest three {exponent(points[-3:]):.2f}"
            console.print(f"{name}: time grows with tokens to the power of {powers} ({steps})", soft_wrap=True)
        if arguments.json:
            _append(arguments.json, conditions, results, grown)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    parser.add_argument("--full", action="store_true", help="every size for every algorithm; hours on a CPU")
    parser.add_argument("--only", nargs="+", choices=[*ESTIMATORS, *LOSSES], default=[*ESTIMATORS, *LOSSES])
    parser.add_argument("--case", nargs=3, action="append", metavar=("ROWS", "WIDTH", "FILL"), help="a size instead")
    parser.add_argument("--growth", nargs="+", type=int, default=GROWTH_ROWS, metavar="ROWS")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each side, which take turns; medians are shown")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch, for both sides")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: processor time, for a busy machine")
    parser.add_argument("--devices", nargs="+", choices=devices, default=devices)
    parser.add_argument("--json", type=Path, help="write the figures here too, one JSON object a line and device")
    return parser.parse_args()


def _compare_all(arguments: argparse.Namespace, device: str, console: Console) -> list[Result]:
    results = []
    for name in arguments.only:
        cases = FULL if arguments.full else QUICK[name]
        if arguments.case:
            cases = [Case(int(rows), int(width), float(fill)) for rows, width, fill in arguments.case]
        for case in cases:
            needed, there = PADDED_COPIES * case.rows * case.width * 4 / 2**20, available_mebibytes(device)
            if needed > there:
                console.print(f"{name} on {case} is left out: verl may need {needed:.0f} MiB, {there:.0f} are free")
                continue
            results.append(compare(name, case, device, arguments.repeats, arguments.clock))
    return results


def compare(name: str, case: Case, device: str, repeats: int, clock: str) -> Result:
    """Time and memory of both sides. Raises ``RuntimeError`` where their results differ."""
    batch = draw(case, device)
    of_ours, of_verl = (
        (sides.our_loss, sides.verls_loss) if name in LOSSES else (sides.our_advantages, sides.verls_advantages)
    )
    ours, verls = of_ours(name), of_verl(name)
    difference = _largest_difference(ours(batch), verls(batch))
    if not difference < TOLERANCE:
        raise RuntimeError(f"{name} on {case}: ours and verl's differ by {difference}")
    calls = {"ours": lambda: ours(batch), "verl": lambda: verls(batch)}
    times = milliseconds(calls, repeats, device, clock)
    memory = {side: peak_mebibytes(call, device) for side, call in calls.items()}
    tokens = batch.segments.num_tokens
    return Result(name, case, tokens, times["ours"], times["verl"], memory["ours"], memory["verl"], difference)


def _largest_difference(ours: Sequence[torch.Tensor], verls: Sequence[torch.Tensor]) -> float:
    pairs = zip(ours, verls, strict=True)
    flat = ((x.values(), y.values()) if x.is_nested else (x, y) for x, y in pairs)
    return max(float((x - y).abs().max()) for x, y in flat)


Points = list[tuple[int, float]]


def growth(name: str, device: str, arguments: argparse.Namespace) -> Points:
    """(tokens, our milliseconds) from few rows to many."""
    work = sides.our_advantages(name)
    points = []
    for rows in arguments.growth:
        batch = draw(Case(rows, HEADLINE.width, HEADLINE.fill), device)
        work(batch)
        calls = {"ours": lambda batch=batch: work(batch)}
        taken = milliseconds(calls, arguments.repeats, device, arguments.clock)
        points.append((batch.segments.num_tokens, taken["ours"]))
    return points


def exponent(points: Points) -> float:
    """e of the least-squares fit of time = c * tokens**e; below 1 where constant costs still count."""
    tokens, times = np.log(np.array(points)).T
    return float(np.polyfit(tokens, times, 1)[0])


def _append(file: Path, conditions: str, results: list[Result], grown: dict[str, Points]) -> None:
    figures = {
        "conditions": conditions,
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
        "results": [asdict(result) for result in results],
        "growth": {name: {"points": points, "exponent": exponent(points)} for name, points in grown.items()},
    }
    with file.open("a") as out:
        out.write(json.dumps(figures) + "\n")
