"""How old recipes make datasets and samplers (``verl.trainer.main_ppo``, later ``verl.trainer.ppo.utils``)."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, cast

from omegaconf import DictConfig
from torch.utils.data import Dataset, Sampler

from compat.data.rl_dataset import RLHFDataset
from runtime.data.dataset import custom_class
from runtime.data.sampler import build_sampler
from runtime.errors import ConfigError


def get_dataset_class(data_config: DictConfig) -> type:
    """The class that ``data.custom_cls`` names, or ``RLHFDataset``. Raises DataError for what is no dataset."""
    return custom_class(data_config) or RLHFDataset


def create_rl_dataset(
    data_paths: str | Sequence[str],
    data_config: DictConfig,
    tokenizer: Any,
    processor: Any = None,
    is_train: bool = True,
    max_samples: int = -1,
) -> Dataset:
    """The dataset of ``data_paths``. Raises ConfigError for a training set that is to grow (``data.datagen``)."""
    growing = data_config.get("datagen")
    if is_train and growing is not None and growing.get("path") is not None:
        raise ConfigError(
            "data.datagen.path: datasets that grow while training are not built; order the rows with data.sampler"
        )
    return get_dataset_class(data_config)(
        data_files=data_paths, tokenizer=tokenizer, processor=processor, config=data_config, max_samples=max_samples
    )


def create_rl_sampler(data_config: DictConfig, dataset: Dataset) -> Sampler[int]:
    """The sampler that ``data.sampler`` names, or the trainers' own: in order, or shuffled anew each epoch.

    The order is that of both trainers for the same ``data.seed``; a null one counts as 0.
    """
    return build_sampler(cast(Sized, dataset), data_config, data_config.get("seed") or 0)
