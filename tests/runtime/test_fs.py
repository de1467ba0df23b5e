from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runtime.errors import DataError
from runtime.fs import copy_to_local, local_model, make_once


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("VERLIFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_local_paths_and_file_uris_come_back_as_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "two words.parquet"
    file.touch()
    assert copy_to_local(file) == str(file)
    assert copy_to_local("~/two words.parquet") == str(file)
    assert copy_to_local(f"file://{tmp_path}/two%20words.parquet") == str(file)


@pytest.mark.parametrize("uri", ["nowhere/train.parquet", "file:///nowhere/train.parquet"])
def test_a_missing_file_is_named(uri):
    with pytest.raises(DataError, match=r"nowhere/train\.parquet"):
        copy_to_local(uri)


@pytest.mark.parametrize("uri", ["hdfs://cluster/train.parquet", "s3://bucket/train.parquet"])
def test_remote_schemes_ask_for_a_copy(uri):
    with pytest.raises(DataError, match=r"copy .* to a local disk first"):
        copy_to_local(uri)


@pytest.mark.parametrize("uri", ["tiny://modle", "tiny://model?layers=2", "tiny://task?rows=many", "tiny://task/x"])
def test_unknown_tiny_items_are_refused(uri, cache):
    with pytest.raises(DataError, match="tiny://"):
        copy_to_local(uri)
    assert not cache.exists()


def test_a_model_that_is_neither_a_folder_nor_on_the_hub_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"models/smollm2.*verlift data smollm2"):
        local_model("models/smollm2")


def test_a_failed_make_leaves_nothing_behind(tmp_path):
    def break_half_way(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        make_once(tmp_path / "item", break_half_way)
    assert list(tmp_path.iterdir()) == []


def test_the_process_that_comes_second_keeps_the_first_folder(tmp_path):
    target = tmp_path / "item"

    def lose_the_race(path: Path) -> None:
        target.mkdir()
        (target / "winner").touch()
        path.mkdir()
        (path / "loser").touch()

    make_once(target, lose_the_race)
    assert [path.name for path in tmp_path.rglob("*")] == ["item", "winner"]


def test_two_processes_make_the_same_tiny_model(cache):
    script = "from runtime.fs import copy_to_local; print(copy_to_local('tiny://model?seed=3'))"
    both = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert len(list((cache / "tiny").iterdir())) == 1
