"""Errors of the functions of ``verl.trainer.ppo``, each also the builtin that verl raises in the same place."""

from runtime.errors import BatchSizeError, ConfigError, VerliftError
from shared_algos.errors import AlgorithmError


class UnknownKindError(VerliftError, AlgorithmError, NotImplementedError):
    """A KL estimator or controller of that name does not exist."""


class BadSettingError(ConfigError, AlgorithmError, AssertionError):
    """A setting has a value, or is missing, so that a function cannot do what it was asked for."""


class InvalidConfigError(ConfigError, ValueError, AssertionError):
    """A config that ``validate_config`` refuses."""


class InvalidBatchSizeError(BatchSizeError, InvalidConfigError):
    """Numbers of a config that do not divide."""
