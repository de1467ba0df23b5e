"""Errors of the algorithm core. Each takes one string, so that it is the same error after crossing a process."""


class AlgorithmError(ValueError):
    """The base of the core's errors: an input or a setting that an algorithm cannot work with."""


class UnknownAlgorithmError(AlgorithmError):
    """No algorithm of that kind is registered under that name."""


class DuplicateAlgorithmError(AlgorithmError):
    """A name is already taken by a different function."""


class MissingInputError(AlgorithmError):
    """An algorithm needs a column that the batch does not have."""


class NonFiniteError(AlgorithmError):
    """A reward or value that takes part is infinite or NaN; the message names its row."""
