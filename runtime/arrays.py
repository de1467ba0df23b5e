"""Columns of Python objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def object_array(values: Sequence[Any]) -> np.ndarray:
    """``[B]`` of dtype object, one value a row; numpy itself would make ``[B, L]`` of lists that are equally long."""
    array = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        array[row] = value
    return array
