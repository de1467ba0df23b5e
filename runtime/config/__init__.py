"""The config: hydra's composition, verl's keys, and an account of every key."""

from runtime.config.composed import settle_config
from runtime.config.conversions import CONVERSIONS
from runtime.config.load import LoadedConfig, load_config
from runtime.config.notes import ConfigNote, format_notes
from runtime.config.old_code import OLD_CODE
from runtime.config.roles import (
    bypasses_old_log_prob,
    corrects_rollout,
    num_ranks,
    plays_baseline,
    uses_critic,
    uses_reference,
    writes_sum_pi_squared,
)

__all__ = [
    "CONVERSIONS",
    "OLD_CODE",
    "ConfigNote",
    "LoadedConfig",
    "bypasses_old_log_prob",
    "corrects_rollout",
    "format_notes",
    "load_config",
    "num_ranks",
    "plays_baseline",
    "settle_config",
    "uses_critic",
    "uses_reference",
    "writes_sum_pi_squared",
]
