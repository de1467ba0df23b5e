"""Errors of the helpers, which are also what verl raises in the same place."""

from runtime.errors import ConfigError, DataError, VerliftError


class UnsupportedPathError(DataError, NotImplementedError):
    """A path lies where nothing is read from or written to."""


class PartitionError(VerliftError, AssertionError, ValueError):
    """Rows cannot be partitioned as asked for."""


class PromptLengthError(DataError, NotImplementedError):
    """A prompt is longer than allowed and must not be cut."""


class MetricError(VerliftError, ValueError):
    """A metric got a value, or a way of aggregation, that it cannot use."""


class NotBuiltError(ConfigError, NotImplementedError):
    """A helper was asked for what this build does not have."""
