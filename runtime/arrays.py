"""Columns of Python objects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


def object_array(values: Sequence[Any]) -> np.ndarray:
    """``[B]`` of dtype object, one value a row; numpy itself would make ``[B, L]`` of lists that are equally long."""
    array = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        array[row] = value
    return array


def plain_value(value: Any) -> Any:
    """A Python number for a numpy or torch value of one element; anything else as it is."""
    is_array = isinstance(value, np.generic | np.ndarray | torch.Tensor)
    return value.item() if is_array and math.prod(value.shape) == 1 else value
