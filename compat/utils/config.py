"""``verl.utils.config.validate_config`` over our checks."""

from __future__ import annotations

from omegaconf import DictConfig

from compat.ppo.errors import InvalidBatchSizeError, InvalidConfigError
from runtime.config.composed import settle_config
from runtime.errors import BatchSizeError, ConfigError


def validate_config(
    config: DictConfig,
    use_reference_policy: bool | None = None,  # noqa: ARG001  (both are read off the config)
    use_critic: bool | None = None,  # noqa: ARG001
) -> None:
    """Check every key and number of a recipe's config, old names included; nothing is changed.

    Raises ``ConfigError`` naming the key, and ``BatchSizeError`` for numbers that do not divide; both are also the
    ``ValueError`` and the ``AssertionError`` that verl raises.
    """
    try:
        settle_config(config, use_v1=False)
    except BatchSizeError as error:
        raise InvalidBatchSizeError(str(error)) from error
    except ConfigError as error:
        raise InvalidConfigError(str(error)) from error
