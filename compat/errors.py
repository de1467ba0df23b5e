"""Errors of the old surface.

verl checks its ``DataProto`` with ``assert``, and old recipes catch ``AssertionError``; each class here is therefore
also the builtin that verl raises in the same place.
"""

from pickle import UnpicklingError

from runtime.errors import BatchSizeError, DataError, VerliftError
from shared_algos.errors import AlgorithmError


class DataProtoError(DataError, AssertionError):
    """A ``DataProto`` is inconsistent, or an operation was asked for what its columns do not allow."""


class MissingColumnError(DataProtoError, KeyError):
    """A column or meta_info key is named that is not there."""

    __str__ = Exception.__str__  # KeyError prints the repr of its message


class MissingDimensionError(DataProtoError, IndexError):
    """A column has fewer dimensions than an operation works on."""


class ColumnTypeError(DataProtoError, TypeError, ValueError):
    """A value, or an index, has a type that cannot be used."""


class UnionConflictError(DataProtoError):
    """Two batches share a key whose values differ."""


class UnequalSplitError(DataProtoError, BatchSizeError):
    """A number of rows does not divide by the number of parts asked for."""


class PickleRefusedError(DataProtoError, UnpicklingError):
    """A pickled ``DataProto`` asks for a name that could run code; nothing of it ran."""


class LayoutError(DataError, ValueError, AssertionError):
    """A padded or jagged tensor does not have the shape, lengths or layout that was said."""


class CustomFunctionError(VerliftError, AlgorithmError):
    """An estimator or loss of a recipe cannot be called as it is, or returned what it must not."""
