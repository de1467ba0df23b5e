"""Bad input of the command line: one message, exit code 2, and no process left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

HOUSE = Path(__file__).resolve().parents[2]
MARK = "VERLIFT_TEST_MARK"


def marked_processes(mark: str) -> list[psutil.Process]:
    """Processes that inherited ``mark`` in their environment, orphans too."""
    return [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.parametrize("use_v1", ["false", "true"])
def test_a_missing_file_ends_the_command_with_one_message(tmp_path, use_v1):
    mark = uuid.uuid4().hex
    overrides = ["data.train_files=/nowhere.parquet", f"trainer.use_v1={use_v1}"]
    done = subprocess.run(
        [sys.executable, "-m", "verlift.main", "train", "--config-name", "tiny", *overrides],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HOUSE), "VERLIFT_DEBUG": "0", MARK: mark},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    (message,) = done.stderr.splitlines()
    assert message.startswith("error: no file or folder '/nowhere.parquet'")
    assert message.endswith("(DataError)")
    assert done.stdout == ""
    assert marked_processes(mark) == []
    assert list(tmp_path.iterdir()) == []
