"""Typed errors. Each message names the thing (key, uid, file and row, both numbers) and the way out.

Every class takes one string, so that an error raised in a Ray worker is the same error in the driver.
"""


class VerliftError(Exception):
    """The base of every error that a user can put right; the command line prints it without a traceback."""


class ConfigError(VerliftError):
    """A config key is unknown, has a bad value, or asks for what cannot run."""


class BatchSizeError(ConfigError):
    """Numbers of prompts, trajectories, mini-batches or ranks that do not divide."""


class DataError(VerliftError):
    """A data file or row cannot be used."""


class PromptTooLongError(DataError):
    """A prompt has more tokens than ``data.max_prompt_length`` and ``data.truncation`` is ``error``."""


class RewardError(VerliftError):
    """A reward function is missing, raised, or returned what is not a finite number."""


class RolloutError(VerliftError):
    """Generation or an agent loop failed."""


class DataPlaneError(VerliftError):
    """TransferQueue returned fewer rows or fields than were asked for, or could not be reached."""


class ResourceError(VerliftError):
    """Ray cannot place what the config asks for, or a worker died."""


class CheckpointError(VerliftError):
    """A checkpoint cannot be written, or is not there, or does not fit the model."""


class CaptureError(VerliftError):
    """A capture cannot be read, or two captures cannot be compared."""
