"""Rollout that goes on until a training step has enough groups that can teach something (DAPO's dynamic sampling)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch

from runtime import containers
from runtime.agent_loop import Submission
from runtime.errors import RolloutError
from runtime.group_filter import GroupFilter
from runtime.identity import TrajectoryKey
from runtime.trainer.prompts import PromptSource

logger = logging.getLogger(__name__)


class Player(Protocol):
    """What a trainer offers; see ``Trainer``."""

    prompts: PromptSource

    def play(self, prompts: list[Submission]) -> Any: ...

    def expect(self, prompts: list[Submission]) -> None: ...

    def kept_rows(self, batch: Any, group_filter: GroupFilter) -> list[int]: ...

    def keys_of(self, batch: Any) -> list[TrajectoryKey]: ...

    def discard(self, batch: Any, rows: Sequence[int]) -> None: ...


def play_until_full(
    player: Player, prompts: list[Submission], group_filter: GroupFilter
) -> tuple[Any, Mapping[str, Sequence[float]]]:
    """Play ``prompts`` and then further ones, until ``train_batch_size`` groups are kept; those that came first are.

    Returns their rows in canonical order, and how many rollouts it took and groups it cost. Raises ``RolloutError``
    after ``max_num_gen_batches`` rollouts, and when no prompt of the whole data set has a group that is kept.
    """
    wanted = player.prompts.batch_size
    kept = dropped = played = 0
    parts = []
    for rollouts in itertools.count(1):
        batch = player.play(prompts)
        keys = player.keys_of(batch)
        rows = player.kept_rows(batch, group_filter)
        groups = list(dict.fromkeys(keys[row].uid for row in rows))
        played, dropped = played + len(prompts), dropped + len(prompts) - len(groups)
        taken = set(groups[: wanted - kept])
        kept += len(taken)
        rows = [row for row, key in enumerate(keys) if key.uid in taken]
        player.discard(batch, _others(rows, len(keys)))
        if rows:
            parts.append(containers.select_rows(batch, torch.tensor(rows)))
        if kept == wanted:
            break
        logger.info("filter_groups: %d of %d groups after %d rollouts of this step", kept, wanted, rollouts)
        _check_progress(
            group_filter, rollouts, f"{kept} of {wanted} groups", not kept and played >= player.prompts.rows
        )
        prompts = player.prompts.more(wanted - kept)
        player.expect(prompts)
    figures = {"train/num_gen_batches": rollouts, "training/filter_groups/evicted_samples": dropped}
    return containers.concat(parts), {name: [float(value)] for name, value in figures.items()}


def _others(rows: Iterable[int], count: int) -> list[int]:
    return sorted(set(range(count)) - set(rows))


def _check_progress(group_filter: GroupFilter, rollouts: int, have: str, hopeless: bool) -> None:
    if hopeless:
        raise RolloutError(
            "algorithm.filter_groups: in a whole pass through the training data no group differs in "
            f"{group_filter.metric!r}; look at the reward function, or turn the filter off"
        )
    if 0 < group_filter.max_batches <= rollouts:
        raise RolloutError(
            f"algorithm.filter_groups kept {have} in {rollouts} rollouts, and max_num_gen_batches={rollouts}; raise it "
            "(0: no limit), or give prompts that are neither too hard nor too easy"
        )
