"""The config: hydra's composition, verl's keys, and an account of every key."""

from runtime.config.load import LoadedConfig, load_config
from runtime.config.notes import ConfigNote, format_notes
from runtime.config.roles import num_ranks, uses_critic, uses_reference

__all__ = ["ConfigNote", "LoadedConfig", "format_notes", "load_config", "num_ranks", "uses_critic", "uses_reference"]
