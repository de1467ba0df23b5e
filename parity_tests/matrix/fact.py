"""What a case with known right values is made of: the check, and rows given by hand for stages of both trainers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from parity_tests.capture import StageCapture
from parity_tests.isolated import Bench, Feed, isolated
from parity_tests.isolated.synthetic import Outline, feed_around
from parity_tests.matrix.axes import ACTOR, ROLLOUT, Changes, derived

Check = Iterator[str]
"""What is wrong, one line each; nothing when all is right."""


@dataclass(frozen=True)
class Fact:
    """One case. check: gives what is wrong on standing trainers; it may write below the folder."""

    number: str
    name: str
    check: Callable[[Bench, Path], Check]

    @property
    def title(self) -> str:
        """``case 7: 768 requests have 768 seeds``, as reports name it."""
        return f"case {self.number}: {self.name}"


class Sheet:
    """Rows given by hand, fed to stages of both trainers."""

    def __init__(
        self,
        lengths: Sequence[int],
        keys: Sequence[tuple[int, int, int]] | None = None,
        mask: Sequence[int] | None = None,
        **columns: Sequence[float],
    ) -> None:
        """lengths: of responses. keys: (prompt, session, index), by default one session of as many prompts.

        columns: values over response tokens, or one a row for ``scores`` (outcomes on the last token).
        """
        rows = len(lengths)
        outline = Outline(
            keys=keys or [(row, 0, 0) for row in range(rows)],
            prompt_lengths=torch.full((rows,), 3),
            response_lengths=torch.tensor(lengths),
            mask=torch.tensor([1] * sum(lengths) if mask is None else list(mask)),
        )
        self.rows = rows
        self.feed = feed_around(outline, 0, torch.Generator().manual_seed(0))
        scores = columns.pop("scores", None)
        given = {name: torch.tensor(list(values), dtype=torch.float32) for name, values in columns.items()}
        if scores is not None:
            given |= dict.fromkeys(("rm_scores", "token_level_scores"), _outcomes(scores, lengths))
        self.feed = self.feed.with_columns(**given)

    def config(self, **changes: object) -> Changes:
        """One mini-batch of all rows, a prompt each, unless told otherwise; ``__`` stands for a dot."""
        given = {name.replace("__", "."): value for name, value in changes.items()}
        sizes = {"data.train_batch_size": self.rows, f"{ROLLOUT}.n": 1, f"{ACTOR}.ppo_mini_batch_size": self.rows}
        return {**sizes, "data.max_response_length": 8, "algorithm.adv_estimator": "rloo", **given}

    def stages(
        self, bench: Bench, folder: Path, changes: Changes, stages: Sequence[str], feed: Feed | None = None
    ) -> list[dict[str, StageCapture]]:
        """What ``stages`` of the legacy trainer and of V1 wrote. Raises AssertionError where the two differ."""
        shutil.rmtree(folder, ignore_errors=True)
        found = isolated(bench, derived(changes), feed or self.feed, folder, stages)
        if found.alarm:
            raise AssertionError(found.alarm)
        return [{stage: run.capture.stage(1, stage) for stage in stages} for run in found.sides.values()]

    def update(self, bench: Bench, folder: Path, changes: Changes) -> list[Mapping[str, tuple[float, ...]]]:
        """The series of an actor's update whose old log-probs are the policy's own: all ratios are 1."""
        sides = self.stages(bench, folder, changes, ["old_log_prob"])
        on_policy = self.feed.with_columns(old_log_probs=sides[0]["old_log_prob"].read("old_log_probs"))
        return [
            side["update_actor"].series for side in self.stages(bench, folder, changes, ["update_actor"], on_policy)
        ]

    def advantages(self, bench: Bench, folder: Path, **changes: object) -> list[list[float]]:
        """The advantages on each side, ``[T]``."""
        return self.column(bench, folder, "advantages", self.config(**changes))

    def column(self, bench: Bench, folder: Path, name: str, changes: Changes) -> list[list[float]]:
        """What the advantage stage wrote as ``name`` on each side, ``[T]``."""
        sides = self.stages(bench, folder, changes, ["advantage"])
        return [side["advantage"].read(name).tolist() for side in sides]


def _outcomes(scores: Sequence[float], lengths: Sequence[int]) -> Tensor:
    column = torch.zeros(sum(lengths))
    column[torch.tensor(lengths).cumsum(0) - 1] = torch.tensor(list(scores), dtype=torch.float32)
    return column


def differ(what: str, sides: Iterable[Sequence[float]], expected: Sequence[float], within: float = 1e-6) -> Check:
    for side, found in zip(("legacy", "v1"), sides, strict=True):
        near = len(found) == len(expected) and all(abs(a - b) <= within for a, b in zip(found, expected, strict=True))
        if not near:
            yield f"{what} of {side}: {list(found)}, expected {list(expected)}"
