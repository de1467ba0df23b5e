import io
import json
import subprocess
import sys

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from parity_tests.capture import CaptureHook, write_manifest
from parity_tests.compare import compare
from parity_tests.report import print_report, write_report
from runtime.identity import TrajectoryKey
from runtime.trainer.hooks import StageRecord
from runtime.trajectories import TrajectoryBatch
from shared_algos.segments import Segments
from verlift.parity import app


def printed(verdict, width=200, verbose=False):
    stream = io.StringIO()
    print_report(verdict, Console(file=stream, width=width), verbose)
    return stream.getvalue()


@pytest.fixture
def pair(save, synthetic, edit, records):
    faulty = synthetic()
    changed = faulty[1, "advantage"].batch["advantages"].clone()
    changed[0] = float("nan")
    edit(faulty, (1, "advantage"), advantages=changed)
    return save("legacy", records), save("v1", faulty)


def test_the_table_tells_each_field_and_the_last_line_the_first_divergence(pair, records):
    verdict = compare(*pair)
    text = printed(verdict)
    row = next(line for line in text.splitlines() if "advantages" in line and "diverged" in line)
    assert "inf" in row
    assert str(records[1, "advantage"].batch.keys[0]) in row
    assert "3 weights" in text
    assert text.splitlines()[-1] == verdict.line


def lines_of(text, stage):
    return [line for line in text.splitlines() if f"│ {stage} " in line]


def test_equal_fields_of_a_stage_share_a_line_that_names_them(save, records, synthetic):
    verdict = compare(save("legacy", records), save("v1", synthetic()))
    first, second = lines_of(printed(verdict), "advantage")
    assert all(name in first for name in ("keys and lengths", "token_level_rewards", "advantages", "returns", "equal"))
    assert "│ 2 " in second
    header = printed(verdict).splitlines()[1]
    assert "max diff" not in header
    assert "first key" not in header


def test_equal_fields_are_counted_where_one_differs(pair):
    """Step 1 has a line of its own for the field that differs and one for the other four; step 2 one for all five."""
    verdict = compare(*pair)
    lines = lines_of(printed(verdict), "advantage")
    assert ["diverged" in line for line in lines] == [False, True, False]
    assert "4 fields" in lines[0]
    assert "5 fields" in lines[2]


def test_verbose_gives_every_field_a_line(pair):
    verdict = compare(*pair)
    lines = lines_of(printed(verdict, verbose=True), "advantage")
    names = ["keys and lengths", "token_level_rewards", "advantages", "returns", "kl"] * 2
    assert [next(name for name in sorted(names, key=len, reverse=True) if name in line) for line in lines] == names


def test_the_last_line_is_never_wrapped(pair):
    verdict = compare(*pair)
    assert printed(verdict, width=60).splitlines()[-1] == verdict.line


def test_report_json_is_strict_and_tells_the_same(tmp_path, pair):
    verdict = compare(*pair)
    write_report(verdict, tmp_path / "out" / "report.json")

    def refuse(literal):
        raise AssertionError(f"{literal} is not JSON")

    report = json.loads((tmp_path / "out" / "report.json").read_text(), parse_constant=refuse)
    assert (report["verdict"], report["exit_code"], report["line"]) == ("diverged", 1, verdict.line)
    assert report["first_divergence"]["field"] == "advantages"
    assert report["first_divergence"]["max_abs"] == "inf"
    assert len(report["fields"]) == len(verdict.fields)


def run_compare(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_exit_codes_of_the_command(tmp_path, save, synthetic, pair):
    report = tmp_path / "report.json"
    diverged = run_compare(pair[0].directory, pair[1].directory, "--report", report)
    assert diverged.exit_code == 1
    assert diverged.stdout.splitlines()[-1].startswith("PARITY DIVERGED at step 1 stage advantage field advantages")

    same = save("again", synthetic())
    passed = run_compare(pair[0].directory, same.directory, "--report", report)
    assert passed.exit_code == 0
    assert passed.stdout.splitlines()[-1] == "PARITY PASS"
    assert json.loads(report.read_text())["verdict"] == "pass"

    (same.directory / "step_1" / "reward.json").write_text("{")
    damaged = run_compare(pair[0].directory, same.directory, "--report", report)
    assert damaged.exit_code == 2
    assert "step_1/reward.json" in damaged.stderr
    assert run_compare(pair[0].directory, tmp_path / "nothing", "--report", report).exit_code == 2


def test_a_report_that_cannot_be_written_is_no_divergence(pair):
    failed = run_compare(pair[0].directory, pair[1].directory, "--report", "/dev/null/report.json")
    assert failed.exit_code == 2
    assert "could not write" in failed.stderr


COMPARE_CAPTURES = """
import resource
import sys
import time
from parity_tests.capture import Capture
from parity_tests.compare import compare

start = time.perf_counter()
verdict = compare(Capture.open(sys.argv[1]), Capture.open(sys.argv[2]))
seconds = time.perf_counter() - start
failed = sum(field.status.failed for field in verdict.fields)
print(failed, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, round(seconds, 2))
"""


def save_many_rows(directory, seed, steps, config):
    """4,000 trajectories of about 100 tokens, in two columns a step."""
    draw = torch.Generator().manual_seed(0)
    responses = Segments.from_lengths(torch.randint(1, 200, (4000,), generator=draw))
    keys = tuple(TrajectoryKey(f"u{row // 8}", row % 8, 0) for row in range(4000))
    bare = TrajectoryBatch(keys, Segments.from_lengths([0] * 4000), responses, {})
    draw = torch.Generator().manual_seed(seed)
    hook = CaptureHook(directory)
    for step in range(1, steps + 1):
        columns = {name: torch.randn(responses.num_tokens, generator=draw) for name in ("old_log_probs", "entropy")}
        hook(StageRecord(step, "old_log_prob", bare.with_columns(columns)))
    write_manifest(directory, config, {}, {}, {})
    return directory


def test_memory_of_a_comparison_does_not_grow_with_the_steps(tmp_path, config):
    """Every column differs, which costs the most. Seven more steps would be 45 MB if they were kept."""
    peaks = []
    for steps in (1, 8):
        sides = [save_many_rows(tmp_path / f"{seed}_{steps}", seed, steps, config(bool(seed))) for seed in (0, 1)]
        command = [sys.executable, "-c", COMPARE_CAPTURES, *map(str, sides)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        failed, mebibytes, seconds = output.split()
        assert int(failed) == 2 * steps
        assert float(seconds) < 60
        peaks.append(int(mebibytes))
    assert peaks[1] < peaks[0] + 20, f"peak memory of 1 and 8 steps: {peaks} MiB"
