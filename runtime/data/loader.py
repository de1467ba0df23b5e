"""Batches of prompts from a dataset, and the loader's state for resuming."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, cast

import numpy as np
import torch
from omegaconf import DictConfig
from torch.utils.data import Dataset, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from runtime.data.sampler import EpochSampler, build_sampler
from runtime.errors import BatchSizeError, DataError


def collate_fn(data_list: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Turn P samples into columns: tensors are stacked to ``[P, ...]``, all else becomes an object array ``[P]``.

    As ``verl.utils.dataset.rl_dataset.collate_fn``, but samples with different keys are refused: verl's columns would
    shift against each other.

    >>> batch = collate_fn([{"x": torch.zeros(1), "chat": [1, 2]}, {"x": torch.ones(1), "chat": [3, 4]}])
    >>> batch["x"].shape, batch["chat"].shape
    (torch.Size([2, 1]), (2,))
    """
    names = data_list[0].keys()
    for sample in data_list:
        if sample.keys() != names:
            raise DataError(f"samples of one batch have different keys; only some have {sorted(names ^ sample.keys())}")
    return {name: _column(name, [sample[name] for sample in data_list]) for name in names}


def build_dataloader(
    dataset: Dataset,
    config: DictConfig,
    seed: int,
    validation: bool = False,
    sampler: Sampler[int] | None = None,
    collate: Callable[..., Any] | None = None,
) -> StatefulDataLoader:
    """Build the loader of the group ``data``; sampler, collate: a recipe's own, instead of what the config says.

    Training: batches of ``gen_batch_size`` prompts, or ``train_batch_size`` when that is null; the last incomplete one
    of an epoch is dropped; ``shuffle`` draws a new order each epoch from ``data.seed``, or ``seed`` when that is null,
    unless ``sampler`` names a class of the user's own.
    Validation: batches of ``val_batch_size`` (null: all rows), none dropped, ``validation_shuffle``.

    Raises BatchSizeError when the dataset has fewer rows than one training batch.
    """
    rows = len(cast(Sized, dataset))
    key, batch_size = _batch_size(config, rows, validation)
    if rows == 0 or (rows < batch_size and not validation):
        raise BatchSizeError(
            f"the data files hold {rows} rows after filtering, fewer than one batch of {key}={batch_size}; "
            f"give more rows or lower {key}"
        )
    seed = seed if config.get("seed") is None else config.seed
    if sampler is None and validation:
        sampler = EpochSampler(rows, config.validation_shuffle, seed)
    elif sampler is None:
        sampler = build_sampler(dataset, config, seed)
    return StatefulDataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        drop_last=not validation,
        num_workers=config.dataloader_num_workers,
        collate_fn=collate or collate_fn,
    )


def _batch_size(config: DictConfig, rows: int, validation: bool) -> tuple[str, int]:
    """The config key that decides, and the prompts of a batch."""
    if validation:
        return "data.val_batch_size", config.val_batch_size or rows
    key = "train_batch_size" if config.get("gen_batch_size") is None else "gen_batch_size"
    return f"data.{key}", config[key]


def _column(name: str, values: list[Any]) -> torch.Tensor | np.ndarray:
    if isinstance(values[0], torch.Tensor):
        try:
            return torch.stack(values)
        except (RuntimeError, TypeError) as error:
            raise DataError(f"column {name!r} cannot be stacked to one tensor: {error}") from error
    # From an iterator, or numpy would look into equally long lists and make a matrix of them.
    return np.fromiter(iter(values), dtype=object, count=len(values))
