"""What was played, as people read it: texts with their scores, for files of generations and figures of validation."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runtime.arrays import plain_value
from runtime.errors import ConfigError
from runtime.trajectories import TrajectoryBatch, last_outputs
from runtime.validation_metrics import named_figures, process_validation_metrics

_READS = ("prompts", "responses", "rm_scores", "num_turns")
_OBJECTS = ("data_source", "reward_model", "reward_extra_info")
_VOTES = "pred"
"""The one variable that need not be a number: what a majority votes by."""
_SHUFFLE_SEED = 42
"""verl's: the same prompts are shown in every validation."""


@dataclass(frozen=True)
class Generations:
    """N played sessions, one value each."""

    uids: list[str] = field(default_factory=list)
    data_sources: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    """The prompt's text, without special tokens."""
    outputs: list[str] = field(default_factory=list)
    """The last response's text, without special tokens."""
    ground_truths: list[Any] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    infos: list[Mapping[str, Any]] = field(default_factory=list)
    """What the reward function gave beside the score, numbers and text."""

    @classmethod
    def of(cls, batch: TrajectoryBatch, tokenizer: Any) -> Generations:
        """The last output of each session of a scored batch, which holds what ``reads`` names."""
        batch = batch.select(last_outputs(batch))
        nothing = [None] * len(batch)
        truths = [(answer or {}).get("ground_truth") for answer in batch.objects.get("reward_model", nothing)]
        infos = [info or {} for info in batch.objects.get("reward_extra_info", nothing)]
        return cls(
            uids=[key.uid for key in batch.keys],
            data_sources=[str(source) for source in batch.objects.get("data_source", ["unknown"] * len(batch))],
            inputs=tokenizer.batch_decode(batch.prompts.split(batch["prompts"]), skip_special_tokens=True),
            outputs=tokenizer.batch_decode(batch.responses.split(batch["responses"]), skip_special_tokens=True),
            ground_truths=truths,
            scores=batch.responses.sum(batch["rm_scores"]).tolist(),
            turns=batch["num_turns"].to(torch.int64).tolist(),
            infos=[{name: plain_value(value) for name, value in info.items()} for info in infos],
        )

    @staticmethod
    def reads(there: Collection[str]) -> tuple[str, ...]:
        """The fields that ``of`` wants of a batch that has ``there``."""
        return (*_READS, *(name for name in _OBJECTS if name in there))

    @classmethod
    def together(cls, parts: Sequence[Generations]) -> Generations:
        """All of ``parts``, in order."""
        return cls(*([value for part in parts for value in getattr(part, kept.name)] for kept in fields(cls)))

    @property
    def variables(self) -> dict[str, list[Any]]:
        """The score as ``reward`` and every key of ``infos``, one value a session, ``None`` where it has none."""
        names = dict.fromkeys(name for info in self.infos for name in info)
        return {"reward": self.scores, **{name: [info.get(name) for info in self.infos] for name in names}}

    def figures(self) -> dict[str, float]:
        """Figures of a validation under verl's names; ``{}`` of nothing."""
        if not self.scores:
            return {}
        counted = {name: values for name, values in self.variables.items() if name == _VOTES or _are_numbers(values)}
        figures = process_validation_metrics(self.data_sources, self.uids, counted)
        return named_figures(figures, np.array(self.turns))

    def columns(self, step: int) -> dict[str, Sequence[Any]]:
        """verl's columns of a file of generations."""
        return {
            "input": self.inputs,
            "output": self.outputs,
            "gts": self.ground_truths,
            "score": self.scores,
            "step": [step] * len(self.scores),
            **{name: values for name, values in self.variables.items() if name != "reward"},
        }


def samples_to_show(
    inputs: Sequence[str], outputs: Sequence[str], scores: Sequence[float], count: int
) -> list[tuple[str, str, float]]:
    """``count`` samples (prompt, answer, score), always those of the same prompts."""
    samples = sorted(zip(inputs, outputs, scores, strict=True))
    np.random.default_rng(_SHUFFLE_SEED).shuffle(samples)
    return samples[:count]


def write_generations(file: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """One JSON line a session; what JSON has no form for is written as text.

    Raises ``ConfigError`` naming a file that cannot be written.
    """
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    lines = [json.dumps(row, ensure_ascii=False, default=_as_json) + "\n" for row in rows]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written ({error.strerror}); look at trainer.rollout_data_dir and validation_data_dir"
        ) from error


def _are_numbers(values: Sequence[Any]) -> bool:
    """Whether a mean can be taken: a reward function may also give texts and lists, which are only written."""
    return all(value is None or isinstance(value, int | float) for value in values)


def _as_json(value: Any) -> Any:
    plain = plain_value(value)
    return plain if isinstance(plain, int | float) else str(value)
