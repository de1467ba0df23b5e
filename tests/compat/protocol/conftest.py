"""A batch with every kind of column, and the check that its rows stayed whole."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from compat.jagged import jagged
from compat.protocol import DataProto
from shared_algos.segments import Segments


def make_batch(rows: int, **meta_info) -> DataProto:
    """Dense, multi-dimensional, jagged, object and numeric columns; every row carries its number in each of them."""
    number = torch.arange(rows)
    segments = Segments.from_lengths(number % 3)
    return DataProto.from_dict(
        tensors={
            "ids": number[:, None] * 10 + torch.arange(4),
            "score": number.float(),
            "flag": number % 2 == 0,
            "ragged": jagged(number[segments.rows], segments),
        },
        non_tensors={
            "uid": np.array([f"u{row}" for row in range(rows)], dtype=object),
            "turns": np.arange(rows, dtype=np.int32),
            "messages": [[{"role": "user", "content": str(row)}] for row in range(rows)],
        },
        meta_info={"temperature": 0.7, **meta_info},
    )


def row_numbers(data: DataProto) -> list[int]:
    """The row numbers a batch holds, after checking that all its columns agree on them."""
    found = data.batch["score"].int().tolist()
    assert data.batch["ids"][:, 0].tolist() == [10 * row for row in found]
    assert data.batch["flag"].tolist() == [row % 2 == 0 for row in found]
    assert [row.tolist() for row in data.batch["ragged"].unbind()] == [[row] * (row % 3) for row in found]
    assert data.non_tensor_batch["uid"].tolist() == [f"u{row}" for row in found]
    assert data.non_tensor_batch["turns"].tolist() == found
    assert [messages[0]["content"] for messages in data.non_tensor_batch["messages"]] == [str(row) for row in found]
    return found


@pytest.fixture(scope="session")
def make() -> Callable[..., DataProto]:
    return make_batch


@pytest.fixture(scope="session")
def numbers() -> Callable[[DataProto], list[int]]:
    return row_numbers
