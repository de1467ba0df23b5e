"""A process group of one rank in this process, the tiny model, and the results of two gloo ranks, made once."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from runtime.fs import copy_to_local

SCENARIOS = Path(__file__).with_name("scenarios.py")


@pytest.fixture(scope="session")
def scenarios() -> ModuleType:
    spec = importlib.util.spec_from_file_location("engine_scenarios", SCENARIOS)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return copy_to_local("tiny://model?seed=0", cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module", autouse=True)
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests compare bits, and two ranks run with one thread each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rendezvous = tmp_path_factory.mktemp("gloo") / "rendezvous"
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def two_ranks(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What ``scenarios.py`` saved on each of two ranks."""
    folder = tmp_path_factory.mktemp("two_ranks")
    outputs = [folder / f"rank{rank}.pt" for rank in range(2)]
    environment = {**os.environ, "PYTHONPATH": str(SCENARIOS.parents[3]), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                str(SCENARIOS),
                str(rank),
                "2",
                str(folder / "rendezvous"),
                tiny_model,
                str(outputs[rank]),
            ],
            env=environment,
        )
        for rank in range(2)
    ]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    return [torch.load(output, weights_only=False) for output in outputs]
