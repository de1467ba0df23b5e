"""Data files read into one table whose rows keep their number."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import datasets
import numpy as np

from runtime.errors import DataError
from runtime.fs import copy_to_local

ROW_NUMBER = "row_number"
"""The column that holds a row's number in the concatenated files, before any filter: seeds and uids come from it."""

_BUILDERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json"}


@dataclass(frozen=True)
class RowLocator:
    """File and row of a row number; small and picklable, so that workers can name rows too.

    files: as the config spells them. starts: the row number of each file's first row.
    """

    files: tuple[str, ...]
    starts: tuple[int, ...]

    def __call__(self, row_number: int) -> str:
        """
        >>> RowLocator(("a.parquet", "b.parquet"), (0, 10))(17)
        'b.parquet row 7'
        """
        file = bisect_right(self.starts, row_number) - 1
        return f"{self.files[file]} row {row_number - self.starts[file]}"


def read_files(
    files: Sequence[str], columns: Mapping[str, str], cache_dir: str | None = None
) -> tuple[datasets.Dataset, RowLocator]:
    """Read parquet, json and jsonl ``files`` into one table with the column ``row_number``, and where rows are from.

    columns: those that every file must have, each with what it holds, for the message.

    Raises DataError naming the file that is missing, cannot be read, is empty, lacks a column or has one of another
    type than the files before it.
    """
    if not files:
        raise DataError("no data file is given; set data.train_files or data.val_files")
    parts = [_read(file, columns, cache_dir) for file in files]
    table = parts[0]
    for file, part in zip(files[1:], parts[1:], strict=True):
        table = _append(table, part, file)
    starts = accumulate((len(part) for part in parts[:-1]), initial=0)
    return table.add_column(ROW_NUMBER, np.arange(len(table))), RowLocator(tuple(files), tuple(starts))


def _read(file: str, columns: Mapping[str, str], cache_dir: str | None) -> datasets.Dataset:
    path = copy_to_local(file, cache_dir)
    builder = _BUILDERS.get(os.path.splitext(path)[1])
    if builder is None:
        raise DataError(f"{file}: expected a file ending in .parquet, .json or .jsonl")
    try:
        table: Any = datasets.load_dataset(builder, data_files=path, split="train")
    except Exception as error:  # datasets wraps what its readers raise in types of its own
        cause = error.__cause__ or error
        raise DataError(f"{file} cannot be read as {builder}: {type(cause).__name__}: {cause}") from error
    for name, meaning in columns.items():
        if name not in table.column_names:
            raise DataError(f"{file} has no column {name!r} for {meaning}; it has {table.column_names}")
    if ROW_NUMBER in table.column_names:
        raise DataError(f"{file} has a column {ROW_NUMBER!r}, a name that is kept for the row's place; rename it")
    return table


def _append(table: datasets.Dataset, part: datasets.Dataset, file: str) -> datasets.Dataset:
    try:
        return datasets.concatenate_datasets([table, part])
    except ValueError as error:
        raise DataError(f"{file} does not go with the files before it: {error}") from error
