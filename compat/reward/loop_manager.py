"""The driver's side of verl's reward loop (``verl.experimental.reward_loop``), for recipes that call it themselves."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from compat.protocol import DataProto
from compat.reward.adapters import call
from compat.reward.helpers import load_reward_manager
from compat.reward.rows import infos_of_columns
from runtime.arrays import object_array
from runtime.config.flat import raw_leaves
from runtime.config.tables import present_name
from runtime.data.chat import load_tokenizer
from runtime.errors import ConfigError

OLD_GROUPS = ("reward_model", "custom_reward_function", "sandbox_fusion")
"""Where the keys under ``reward`` stood before verl 0.7.1."""


class RewardLoopManager:
    """Scores batches by the configured manager, in this process.

    Rule rewards of the trainers are made in their agent loops; this is for code that asks for them itself. Raises
    ConfigError where a reward model is asked for, which is not built.
    """

    reward_loop_worker_handles: None = None

    def __init__(self, config: DictConfig, rm_resource_pool: Any = None) -> None:
        if rm_resource_pool is not None or OmegaConf.select(config, "reward.reward_model.enable"):
            raise ConfigError("reward.reward_model.enable: reward models are not built yet; reward with a function")
        self.config = config
        self.reward_manager = load_reward_manager(config, load_tokenizer(config.actor_rollout_ref.model))

    def compute_rm_score(self, data: DataProto) -> DataProto:
        """``rm_scores`` float32 ``[B, R]``, the extra info as columns, and their names in ``reward_extra_keys``."""
        tensor, extra_info = call(self.reward_manager, data)
        infos_of_columns(extra_info, len(data))
        columns = {name: object_array(list(values)) for name, values in extra_info.items()}
        return DataProto.from_dict({"rm_scores": tensor}, columns, {"reward_extra_keys": list(columns)})


def migrate_legacy_reward_impl(config: DictConfig) -> DictConfig:
    """``config`` itself, its old reward groups moved under ``reward``; what they leave null keeps its value there."""
    with open_dict(config):
        for key, value in raw_leaves(config).items():
            new = present_name(key) if key.partition(".")[0] in OLD_GROUPS else None
            if new is not None and value is not None and value != {}:
                OmegaConf.update(config, new, value, force_add=True)
        for group in OLD_GROUPS:
            config.pop(group, None)
    return config
