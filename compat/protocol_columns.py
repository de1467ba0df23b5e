"""The operations of ``DataProto`` on columns: add, replace, choose, move, rename, unite, cut."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from tensordict import TensorDict
from torch import Tensor

from compat.errors import ColumnTypeError, DataProtoError, MissingColumnError, MissingDimensionError, UnequalSplitError
from compat.protocol_rows import RowOperations
from compat.union import check_meta_union, check_numpy_union, check_tensor_union, union_tensor_dict


class ColumnOperations(RowOperations):
    """What can be done with the columns of three namespaces."""

    batch: TensorDict | None
    non_tensor_batch: dict[str, np.ndarray]

    @abstractmethod
    def with_columns(self, batch: TensorDict | None, arrays: dict[str, np.ndarray], meta_info: dict[str, Any]) -> Self:
        """A batch of this one's class with these columns."""

    def __setitem__(self, key: str, value: Tensor | np.ndarray) -> None:
        """Add or replace a column, a tensor or an array of B rows."""
        if not isinstance(value, Tensor | np.ndarray):
            raise ColumnTypeError(f"column {key!r} must be a tensor or a numpy array, got {type(value).__name__}")
        if value.ndim == 0 or (self._has_rows() and value.shape[0] != len(self)):
            raise DataProtoError(f"column {key!r} has shape {tuple(value.shape)} in a batch of {len(self)} rows")
        if isinstance(value, np.ndarray):
            self.non_tensor_batch[key] = value
        elif self.batch is None:
            self.batch = tensor_batch({key: value}, 1)
        else:
            self.batch.set(key, value)

    def _column(self, key: str) -> Any:
        if self.batch is not None and key in self.batch.keys():  # noqa: SIM118  iterating a TensorDict gives rows
            return self.batch[key]
        if key in self.non_tensor_batch:
            return self.non_tensor_batch[key]
        raise MissingColumnError(f"no column {key!r}; there are {[*self._tensor_names(), *self.non_tensor_batch]}")

    def select(
        self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
        deepcopy: bool = False,
    ) -> Self:
        """A batch of the named columns; ``None`` takes a whole namespace, shared with this batch unless ``deepcopy``.

        Tensors are never copied. Raises ``MissingColumnError`` for tensors that are not there; arrays and meta_info
        that are not there are left out, as in verl.
        """
        batch = self.batch
        if batch_keys is not None:
            self._require("batch", batch_keys, self._tensor_names())
            batch = None if batch is None else batch.select(*batch_keys)
        arrays = _subset(self.non_tensor_batch, non_tensor_batch_keys)
        meta_info = _subset(self.meta_info, meta_info_keys)
        if deepcopy:
            arrays, meta_info = copy.deepcopy(arrays), copy.deepcopy(meta_info)
        return self.with_columns(batch, arrays, meta_info)

    def pop(
        self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
    ) -> Self:
        """Move the named columns out of this batch into a new one. Nothing moves when one is missing."""
        tensors, arrays, meta = batch_keys or (), non_tensor_batch_keys or (), meta_info_keys or ()
        self._require("batch", tensors, self._tensor_names())
        self._require("non_tensor_batch", arrays, self.non_tensor_batch)
        self._require("meta_info", meta, self.meta_info)
        popped = {} if self.batch is None else {key: self.batch.pop(key) for key in tensors}
        return self.with_columns(
            tensor_batch(popped, 1) if popped else None,
            {key: self.non_tensor_batch.pop(key) for key in arrays},
            {key: self.meta_info.pop(key) for key in meta},
        )

    def rename(self, old_keys: str | list[str], new_keys: str | list[str]) -> Self:
        """Rename tensor columns, in place and all at once.

        A column that has a new name already is replaced, as in verl.
        """
        old, new = _names(old_keys), _names(new_keys)
        if len(old) != len(new):
            raise ColumnTypeError(f"rename needs a new name for each old one, got {len(old)} old and {len(new)} new")
        self._require("batch", old, self._tensor_names())
        if self.batch is not None:
            # A column that keeps its name keeps its place, too.
            moved = {name: self.batch.pop(key) for key, name in zip(old, new, strict=True) if key != name}
            self.batch.update(moved)
        return self

    def union(self, other: ColumnOperations) -> Self:
        """Add the columns of ``other``, a batch of the same rows, in place; shared keys must hold equal values.

        Raises ``DataProtoError`` naming both sizes, ``UnionConflictError`` naming the key and the first differing row;
        this batch is then unchanged.
        """
        if self._has_rows() and other._has_rows() and len(self) != len(other):
            raise DataProtoError(
                f"union joins columns of the same rows, but the batches have {len(self)} and {len(other)} rows"
            )
        if self.batch is not None and other.batch is not None:
            check_tensor_union(self.batch, other.batch)
        check_numpy_union(self.non_tensor_batch, other.non_tensor_batch)
        check_meta_union(self.meta_info, other.meta_info)
        if other.batch is not None:
            self.batch = other.batch.copy() if self.batch is None else union_tensor_dict(self.batch, other.batch)
        self.non_tensor_batch.update(other.non_tensor_batch)
        self.meta_info.update(other.meta_info)
        return self

    def unfold_column_chunks(self, n_split: int, split_keys: Sequence[str] | None = None) -> Self:
        """A new batch of ``B * n_split`` rows, so that what lies side by side in a row becomes rows of its own.

        Columns ``[B, W]`` named in ``split_keys`` become ``[B * n_split, W / n_split]``; in all others each row is
        repeated.
        """
        unfolded = self.repeat(n_split)
        for key in split_keys or ():
            if key in self.non_tensor_batch:
                unfolded.non_tensor_batch[key] = _unfold(key, self.non_tensor_batch[key], n_split)
            elif unfolded.batch is not None and key in self._tensor_names():
                unfolded.batch.set(key, _unfold(key, self._column(key), n_split))
        return unfolded

    def _has_rows(self) -> bool:
        """Whether any column says how many rows there are."""
        return self.batch is not None or bool(self.non_tensor_batch)

    def _tensor_names(self) -> list[str]:
        return [] if self.batch is None else list(map(str, self.batch.keys()))

    @staticmethod
    def _require(namespace: str, wanted: Iterable[str], present: Iterable[str]) -> None:
        there = list(present)
        if missing := [key for key in wanted if key not in there]:
            raise MissingColumnError(f"{namespace} has no {missing}; it has {there}")


def tensor_batch(tensors: Mapping[str, Any], num_batch_dims: int) -> TensorDict:
    """A ``TensorDict`` of tensors that agree on their first ``num_batch_dims`` dimensions; else ``DataProtoError``."""
    sizes = {key: tuple(tensor.shape[:num_batch_dims]) for key, tensor in tensors.items()}
    if num_batch_dims < 1 or len(set(sizes.values())) > 1:
        raise DataProtoError(
            f"the tensors of one batch must have the same first {num_batch_dims} dimension(s), got {sizes}"
        )
    return TensorDict(dict(tensors), batch_size=next(iter(sizes.values())))


def _unfold(key: str, column: Any, n_split: int) -> Any:
    if column.ndim < 2:
        raise MissingDimensionError(f"column {key!r} of shape {tuple(column.shape)} has no dim 1 to split")
    if column.shape[1] % n_split:
        raise UnequalSplitError(
            f"column {key!r} of shape {tuple(column.shape)} does not divide into {n_split} on dim 1"
        )
    return column.reshape(column.shape[0] * n_split, column.shape[1] // n_split, *column.shape[2:])


def _subset(items: dict[str, Any], keys: Sequence[str] | None) -> dict[str, Any]:
    return items if keys is None else {key: value for key, value in items.items() if key in keys}


def _names(keys: str | list[str]) -> list[str]:
    if not isinstance(keys, str | list):
        raise ColumnTypeError(f"names must be a string or a list of strings, got {type(keys).__name__}")
    return [keys] if isinstance(keys, str) else keys
