"""Where prompts come from: data files to submissions, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from omegaconf import DictConfig

from runtime.agent_loop import Submission
from runtime.data import build_dataloader, build_dataset
from runtime.data.chat import load_tokenizer
from runtime.data.files import ROW_NUMBER
from runtime.data.sampler import AbstractCurriculumSampler
from runtime.errors import DataError
from runtime.fields import LEVELS
from runtime.identity import PromptIdentity

_MADE_BY_ROLLOUT = {*LEVELS, "attention_mask", "dummy_tensor"}


class PromptSource:
    """The training and validation files of a config as batches of ``Submission``.

    batch_size: prompts of a training step. rows: prompts of an epoch. curriculum: the sampler, where it wants to be
    told how each step went.
    """

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        self.seed = config.runtime.seed
        self.tokenizer = load_tokenizer(config.actor_rollout_ref.model)
        dataset = build_dataset(
            config.data.train_files, self.tokenizer, config.data, max_samples=config.data.train_max_samples
        )
        self.loader = build_dataloader(dataset, config.data, self.seed)
        sampler = self.loader.sampler
        self.curriculum = sampler if isinstance(sampler, AbstractCurriculumSampler) else None
        self._locate = dataset.locate
        self._epoch = 0
        self._supply = self._loaded()
        self._step, self._submitted = 0, Counter[int]()
        self.batch_size = config.data.train_batch_size
        self.rows = len(self.loader) * (config.data.gen_batch_size or self.batch_size)
        all_epochs = self.rows * config.trainer.total_epochs // self.batch_size
        self.total_steps = config.trainer.total_training_steps or all_epochs
        if self.total_steps < 1:
            raise DataError(f"{config.data.train_files} gives no training step; see data.train_batch_size")

    def batches(self) -> Iterator[list[Submission]]:
        """One list of at least ``train_batch_size`` submissions a training step, for as many epochs as the steps need.

        What the loader yields, ``gen_batch_size`` prompts at a time, is put together; what an epoch leaves over opens
        the first batch of the next one.
        """
        for step in range(1, self.total_steps + 1):
            self._step, self._submitted = step, Counter()
            yield self.more(self.batch_size)

    def more(self, prompts: int) -> list[Submission]:
        """The next submissions of the present step, at least ``prompts``; positions go on from those before them."""
        rows: list[dict[str, Any]] = []
        while len(rows) < prompts:
            rows += next(self._supply)
        return self._submissions(rows, "train", self._step, self._locate, self._submitted)

    def _loaded(self) -> Iterator[list[dict[str, Any]]]:
        """What the loader yields, epoch after epoch."""
        while True:
            for batch in self.loader:
                yield _samples(batch)
            self._epoch += 1

    def validation_batches(self, step: int) -> Iterator[list[Submission]]:
        """Every validation prompt once, in file order."""
        if not self.config.data.val_files:
            return
        dataset, loader = self._validation
        for batch in loader:
            yield self._submissions(_samples(batch), "val", step, dataset.locate, Counter())

    @cached_property
    def _validation(self) -> tuple[Any, Iterable[Any]]:
        data = self.config.data
        dataset = build_dataset(data.val_files, self.tokenizer, data, max_samples=data.val_max_samples)
        return dataset, build_dataloader(dataset, data, self.seed, validation=True)

    def progress(self) -> dict[str, float]:
        """The epoch of the last batch, counted from 0."""
        return {"training/epoch": float(self._epoch)}

    def _submissions(
        self,
        samples: Sequence[Mapping[str, Any]],
        partition: str,
        step: int,
        locate: Callable[[int], str],
        seen: Counter[int],
    ) -> list[Submission]:
        """seen: how often each row number has been submitted in this step; counted on."""
        submissions = []
        for position, sample in enumerate(samples, start=seen.total()):
            row = int(sample[ROW_NUMBER])
            identity = PromptIdentity(self.seed, partition, step, row, seen[row])
            seen[row] += 1
            submissions.append(Submission(identity, position, sample, locate(row)))
        return submissions


def _samples(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a collated batch, without the columns that rollout makes: datasets of old recipes bring their own.

    ``dummy_tensor`` is left out too: it carries nothing, see ``RLHFDataset``.
    """
    columns = {name: list(values) for name, values in batch.items() if name not in _MADE_BY_ROLLOUT}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
