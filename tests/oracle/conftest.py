"""verl 0.9.1 in a process of its own, and random ragged batches in its padded layout."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shared_algos.advantages import AdvantageInputs
from shared_algos.segments import Segments

ROOT = Path(__file__).parents[2]
MAX_LENGTH = 24


@contextmanager
def _process(side: str) -> Iterator[Callable[..., Any]]:
    folder = ROOT / ".oracle"
    if not (folder / "verl").is_dir():
        pytest.skip("verl 0.9.1 is not in .oracle/: run tests/oracle/install.sh")
    command = [sys.executable, str(Path(__file__).with_name(side)), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def call(function: str, **arguments: Any) -> Any:
            pickle.dump((function, arguments), process.stdin)
            process.stdin.flush()
            succeeded, answer = pickle.load(process.stdout)
            assert succeeded, answer
            return answer

        yield call
        process.stdin.close()


@pytest.fixture(scope="session")
def process_of_verl() -> Callable[[str], AbstractContextManager[Callable[..., Any]]]:
    """``process_of_verl(side)``: a process that answers with the functions of the file ``side`` in this folder."""
    return _process


@pytest.fixture(scope="session")
def verl() -> Iterator[Callable[..., Any]]:
    """``verl(function, **arguments)``: the answer of a function of ``verl_side.py``; an error there fails the test."""
    with _process("verl_side.py") as call:
        yield call


@dataclass
class Batch:
    """A ragged batch in both layouts."""

    random: np.random.Generator
    exists: Tensor
    """bool ``[B, R]``: inside the response."""
    mask: Tensor
    """int64 ``[B, R]``: response_mask, with holes."""
    groups: Tensor
    """int64 ``[B]``"""

    @property
    def segments(self) -> Segments:
        return Segments.from_lengths(self.exists.sum(1))

    def pack(self, padded: Tensor) -> Tensor:
        """``[B, R]`` to ``[T]``."""
        return padded[self.exists]

    def column(self, scale: float = 1.0) -> Tensor:
        """Normal numbers, float64 ``[B, R]``, garbage at mask-0 positions included."""
        return torch.from_numpy(self.random.normal(0, scale, self.mask.shape))

    def rewards(self) -> Tensor:
        """Rewards on mask-1 tokens, float64 ``[B, R]``: an outcome on the last and something on a few others."""
        last = self.mask.shape[1] - 1 - self.mask.flip(1).argmax(1)
        rewards = self.column() * (self.column() > 1.5)
        rewards[torch.arange(len(last)), last] = torch.from_numpy(self.random.normal(0, 3, len(last)))
        return rewards * self.mask

    def inputs(self, rewards: Tensor, sessions: Tensor | None = None, **columns: Tensor) -> AdvantageInputs:
        """Inputs of an estimator; each row is a session of its own unless ``sessions [B]`` says otherwise."""
        rows = torch.arange(len(self.groups))
        packed = {name: self.pack(column) for name, column in columns.items()}
        return AdvantageInputs(
            self.pack(rewards),
            self.pack(self.mask),
            self.segments,
            self.groups,
            rows if sessions is None else sessions,
            rows,
            **packed,
        )


def make_batch(seed: int) -> Batch:
    """2 to 8 groups of 1 to 8 rows in random order, 1 to 24 tokens a row, some masked but never all."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 9, random.integers(2, 9))
    groups = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    lengths = random.integers(1, MAX_LENGTH + 1, len(groups))
    exists = np.arange(MAX_LENGTH) < lengths[:, None]
    mask = exists & (random.random(exists.shape) < 0.8)
    mask[np.arange(len(groups)), random.integers(0, lengths)] = True
    return Batch(random, torch.from_numpy(exists), torch.from_numpy(mask).long(), torch.from_numpy(groups))


@pytest.fixture(params=range(10), ids=lambda block: f"batches{20 * block}-{20 * block + 19}")
def batches(request: pytest.FixtureRequest) -> list[Batch]:
    """20 of 200 random batches."""
    return [make_batch(20 * request.param + i) for i in range(20)]
