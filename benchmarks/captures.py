"""``python -m benchmarks.captures``: time and memory of comparing captures of more and more trajectories.

Three pairs a size: equal captures; every log-prob of the other one different, which is the most work; rows of the other
one in reverse, so that no file can be read in order. Each comparison has a process of its own, and its memory is what
``benchmarks.measure.peak_mebibytes`` counts beyond what the imports took.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measure import peak_mebibytes
from parity_tests.capture import Capture
from parity_tests.compare import compare
from parity_tests.synthetic import Size, synthetic_capture

PAIRS = {
    "equal": ("PARITY PASS", {}),
    "every log-prob differs": ("PARITY DIVERGED at step 1 stage old_log_prob", {"drift": 0.5}),
    "rows reversed": ("PARITY DIVERGED at step 1 stage rollout field keys", {"reverse": True}),
}
HEADINGS = ("rows", "tokens", "MiB of two", "", "seconds", "MiB/s", "peak MiB", "peak / files")


def main() -> None:
    """Print a line for each size and pair."""
    arguments = _arguments()
    if arguments.measure:
        print(json.dumps(_measured(*arguments.measure)))
        return
    table = Table(*HEADINGS, title=f"rows of 1 to {arguments.longest} tokens")
    for rows in arguments.rows:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            for cells in _lines(Path(folder), Size(rows, arguments.longest)):
                table.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.captures", description=__doc__)
    parser.add_argument("--rows", nargs="+", type=int, default=[1_000, 10_000, 50_000])
    parser.add_argument("--longest", type=int, default=8192, help="tokens of the longest response")
    parser.add_argument("--folder", type=Path, help="where the captures are made; 50,000 rows need 8 GiB")
    parser.add_argument("--measure", nargs=2, type=Path, metavar=("A", "B"), help="only compare these two")
    return parser.parse_args()


def _lines(folder: Path, size: Size) -> list[tuple[str, ...]]:
    left = synthetic_capture(folder / "legacy", size, use_v1=False)
    tokens = sum(int(stage.responses.num_tokens) for stage in left.stages() if stage.stage == "rollout")
    lines = []
    for name, (expected, change) in PAIRS.items():
        right = synthetic_capture(folder / name, size, use_v1=True, **change)
        mebibytes = sum(_mebibytes(side.directory) for side in (left, right))
        command = [sys.executable, "-m", "benchmarks.captures", "--measure", left.directory, right.directory]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        if not found["line"].startswith(expected):
            raise RuntimeError(f"{size.rows} rows, {name}: {found['line']}, expected {expected}")
        speed, peak = mebibytes / found["seconds"], found["peak"]
        figures = (f"{found['seconds']:.1f}", f"{speed:.0f}", f"{peak:.0f}", f"{peak / mebibytes:.3f}")
        lines.append((f"{size.rows:,}", f"{tokens:,}", f"{mebibytes:,.0f}", name, *figures))
    return lines


def _measured(left: Path, right: Path) -> dict[str, float | str | None]:
    found: dict[str, float | str | None] = {}

    def work() -> None:
        started = time.perf_counter()
        found["line"] = compare(Capture.open(left), Capture.open(right)).line
        found["seconds"] = time.perf_counter() - started

    found["peak"] = peak_mebibytes(work, "cpu")
    return found


def _mebibytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20


if __name__ == "__main__":
    main()
