from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from runtime.errors import DataError
from verlift.data import app


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_reasoning_gym_writes_the_rows_that_were_asked_for(tmp_path):
    out = tmp_path / "train.parquet"
    result = invoke(
        "reasoning-gym",
        "--task",
        "chain_sum",
        "--out",
        out,
        "--rows",
        5,
        "--set",
        "min_terms=2",
        "--set",
        "max_terms=2",
    )
    assert result.exit_code == 0
    assert f"wrote 5 rows to {out}" in result.output.replace("\n", "")
    rows = pq.read_table(out).to_pylist()
    assert {row["data_source"] for row in rows} == {"reasoning_gym/chain_sum"}
    entries = [json.loads(row["extra_info"]["reasoning_gym_entry"]) for row in rows]
    assert {entry["metadata"]["num_terms"] for entry in entries} == {2}


def test_gsm8k_reads_several_files(tmp_path):
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file in files:
        file.write_text('{"question": "x", "answer": "#### 1"}\n')
    assert invoke("gsm8k", "--in", files[0], "--in", files[1], "--out", tmp_path / "o.parquet").exit_code == 0
    assert len(pq.read_table(tmp_path / "o.parquet")) == 2


def test_errors_reach_the_caller_as_they_are(tmp_path):
    out = tmp_path / "train.parquet"
    with pytest.raises(DataError, match="--set min_terms: expected KEY=VALUE"):
        invoke("reasoning-gym", "--task", "chain_sum", "--out", out, "--set", "min_terms")
    with pytest.raises(DataError, match="no task 'nothing'"):
        invoke("reasoning-gym", "--task", "nothing", "--out", out)
    assert not out.exists()


def test_smollm2_is_left_alone_when_it_is_there(tmp_path):
    (tmp_path / "config.json").touch()
    assert "is there already" in invoke("smollm2", "--out", tmp_path).output.replace("\n", " ")
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]
