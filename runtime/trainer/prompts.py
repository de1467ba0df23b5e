"""Where prompts come from: data files to submissions, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class PromptLoaders:
    """Loaders of collated batches, and the tokenizer of their prompts.

    validation: gives the loader of the validation prompts, ``None`` when there are none.
    """

    tokenizer: Any
    training: Any
    validation: Callable[[], Any]


class PromptSource:
    """Training and validation prompts as batches of ``Submission``: those of a config's files, or of given loaders.

    batch_size: prompts of a training step. rows: prompts of an epoch. curriculum: the sampler, where it wants to be
    told how each step went.
    """

    def __init__(self, config: DictConfig, loaders: PromptLoaders | None = None) -> None:
        self.config = config
        self.seed = config.runtime.seed
        if loaders is None:
            loaders = _loaders_of(config)
        self.tokenizer, self.loader, self._load_validation = loaders.tokenizer, loaders.training, loaders.validation
        self._locate = locator(self.loader.dataset)
        sampler = self.loader.sampler
        self.curriculum = sampler if isinstance(sampler, AbstractCurriculumSampler) else None
        self._epoch = 0
        self._supply = self._loaded()
        self._step, self._submitted = 0, Counter[int]()
        self.batch_size = config.data.train_batch_size
        self.rows = len(self.loader) * (config.data.gen_batch_size or self.batch_size)
        all_epochs = self.rows * config.trainer.total_epochs // self.batch_size
        self.total_steps = config.trainer.total_training_steps or all_epochs
        if self.total_steps < 1:
            raise DataError(f"{config.data.train_files} gives no training step; see data.train_batch_size")

    def batches(self, after: int = 0) -> Iterator[list[Submission]]:
        """One list of at least ``train_batch_size`` submissions for each training step behind ``after``.

        What the loader yields, ``gen_batch_size`` prompts at a time, is put together; what an epoch leaves over opens
        the first batch of the next one.
        """
        for step in range(after + 1, self.total_steps + 1):
            self._step, self._submitted = step, Counter()
            yield self.more(self.batch_size)

    def more(self, prompts: int) -> list[Submission]:
        """The next submissions of the present step, at least ``prompts``; positions go on from those before them."""
        rows: list[dict[str, Any]] = []
        while len(rows) < prompts:
            rows += next(self._supply)
        return self._submissions(rows, "train", self._step, self._locate, self._submitted)

    def check_resumable(self) -> None:
        """``DataError`` for a loader whose place cannot be saved: better before the training than after it."""
        if not hasattr(self.loader, "state_dict"):
            raise DataError(
                f"the train_dataloader is a {type(self.loader).__name__}, which has no state_dict, so no checkpoint "
                "can say where the data goes on; use torchdata's StatefulDataLoader, or set trainer.save_freq=-1"
            )

    def state_dict(self) -> dict[str, Any]:
        """The place in the data, between two steps."""
        return {"epoch": self._epoch, "loader": self.loader.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a place that ``state_dict`` gave, before the first batch."""
        self._epoch = state["epoch"]
        self.loader.load_state_dict(state["loader"])

    def _loaded(self) -> Iterator[list[dict[str, Any]]]:
        """What the loader yields, epoch after epoch."""
        empty_passes = 0
        while True:
            empty_passes += 1
            for batch in self.loader:
                empty_passes = 0
                yield _samples(batch)
            # The first pass of a run that was resumed at the end of an epoch is empty, too.
            if empty_passes == 2:
                raise DataError("a whole pass through the training data gave no batch; look at data.sampler")
            self._epoch += 1

    def validation_batches(self, step: int) -> Iterator[list[Submission]]:
        """Every validation prompt once, in file order."""
        if self._validation is None:
            return
        for batch in self._validation:
            yield self._submissions(_samples(batch), "val", step, locator(self._validation.dataset), Counter())

    @cached_property
    def _validation(self) -> Any:
        return self._load_validation()

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
            if ROW_NUMBER not in sample:
                raise DataError(
                    f"a batch of the {partition} loader has no {ROW_NUMBER!r}, only {sorted(sample)}: its collate_fn "
                    "must keep every key of the rows, and the data set of a loader of your own must number its rows"
                )
            row = int(sample[ROW_NUMBER])
            identity = PromptIdentity(self.seed, partition, step, row, seen[row])
            seen[row] += 1
            submissions.append(Submission(identity, position, sample, locate(row)))
        return submissions


def _loaders_of(config: DictConfig) -> PromptLoaders:
    """The loaders of the files that a config names; validation files are read when they are needed."""
    tokenizer = load_tokenizer(config.actor_rollout_ref.model)
    data, seed = config.data, config.runtime.seed

    def validation() -> Any:
        if not data.val_files:
            return None
        dataset = build_dataset(data.val_files, tokenizer, data, max_samples=data.val_max_samples)
        return build_dataloader(dataset, data, seed, validation=True)

    dataset = build_dataset(data.train_files, tokenizer, data, max_samples=data.train_max_samples)
    return PromptLoaders(tokenizer, build_dataloader(dataset, data, seed), validation)


def locator(dataset: Any) -> Callable[[int], str]:
    """How a data set tells file and row of a ``row_number``; its own name and the number where it cannot."""
    return getattr(dataset, "locate", f"{type(dataset).__name__} row {{}}".format)


def _samples(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a collated batch, without the columns that rollout makes: datasets of old recipes bring their own.

    ``dummy_tensor`` is left out too: it carries nothing, see ``RLHFDataset``.
    """
    columns = {name: list(values) for name, values in batch.items() if name not in _MADE_BY_ROLLOUT}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
