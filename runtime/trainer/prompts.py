"""Where prompts come from: data files to submissions, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from omegaconf import DictConfig
from transformers import AutoTokenizer

from runtime.agent_loop import Submission
from runtime.data import build_dataloader, build_dataset
from runtime.errors import DataError
from runtime.fs import local_model
from runtime.identity import PromptIdentity


class PromptSource:
    """The training and validation files of a config as batches of ``Submission``."""

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        self.seed = config.runtime.seed
        model = config.actor_rollout_ref.model
        tokenizer = AutoTokenizer.from_pretrained(
            local_model(model.tokenizer_path or model.path), trust_remote_code=model.trust_remote_code
        )
        dataset = build_dataset(config.data.train_files, tokenizer, config.data)
        self.loader = build_dataloader(dataset, config.data, self.seed)
        self._locate = dataset.locate
        self._tokenizer = tokenizer
        self._epoch = 0
        self.total_steps = config.trainer.total_training_steps or len(self.loader) * config.trainer.total_epochs
        if self.total_steps < 1:
            raise DataError(f"{config.data.train_files} gives no training step; see data.train_batch_size")

    def batches(self) -> Iterator[list[Submission]]:
        """One list of P submissions a training step, for as many epochs as the steps need."""
        step = 0
        while True:
            for batch in self.loader:
                step += 1
                yield self._submissions(batch, "train", step, self._locate)
                if step == self.total_steps:
                    return
            self._epoch += 1

    def validation_batches(self, step: int) -> Iterator[list[Submission]]:
        """Every validation prompt once, in file order."""
        if not self.config.data.val_files:
            return
        dataset = build_dataset(self.config.data.val_files, self._tokenizer, self.config.data)
        for batch in build_dataloader(dataset, self.config.data, self.seed, validation=True):
            yield self._submissions(batch, "val", step, dataset.locate)

    def progress(self) -> dict[str, float]:
        """The epoch of the last batch, counted from 0."""
        return {"training/epoch": float(self._epoch)}

    def _submissions(
        self, batch: Mapping[str, Any], partition: str, step: int, locate: Callable[[int], str]
    ) -> list[Submission]:
        columns = {name: list(values) for name, values in batch.items() if not isinstance(values, torch.Tensor)}
        seen: Counter[int] = Counter()
        submissions = []
        for position, row in enumerate(columns["row_number"]):
            identity = PromptIdentity(self.seed, partition, step, int(row), seen[int(row)])
            seen[int(row)] += 1
            sample = {name: values[position] for name, values in columns.items()}
            submissions.append(Submission(identity, position, sample, locate(int(row))))
        return submissions
