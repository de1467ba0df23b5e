"""Managers that score a whole batch at once, after rollout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from runtime.errors import ConfigError, RewardError
from runtime.reward.functions import ComputeScore, accepts, describe
from runtime.reward.managers import RewardItem, scored
from runtime.trajectories import TrajectoryBatch, outcome_scores


@dataclass(frozen=True)
class BatchRewards:
    """scores: float32 ``[T]`` over response tokens. extra_info: what else each row was given, ``[B]`` dicts."""

    scores: Tensor
    extra_info: Sequence[dict[str, Any]]


class BatchRewardManager(ABC):
    """Scores B trajectories in one call, in the stage ``reward`` of both trainers."""

    @abstractmethod
    def reads(self, there: Collection[str]) -> tuple[str, ...]:
        """The fields that ``score`` needs. there: those that the batch holds."""

    @abstractmethod
    def score(self, batch: TrajectoryBatch) -> BatchRewards:
        """Score ``batch``, one row a session; raises RewardError naming a trajectory."""


class BatchedFunctionManager(BatchRewardManager):
    """One call of ``compute_score`` with lists, one item a row (verl's ``batch``).

    It gets ``data_sources``, ``solution_strs``, ``ground_truths`` and ``extra_infos``, with ``reward_kwargs`` besides,
    and returns B numbers, or dicts with ``score``.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        compute_score: ComputeScore,
        reward_fn_key: str = "data_source",
        **reward_kwargs: Any,
    ) -> None:
        if not accepts(compute_score, "data_sources"):
            raise ConfigError(
                f"reward.reward_manager.name=batch calls its function with lists: {describe(compute_score)} has no "
                "parameter data_sources; give one with reward.custom_reward_function.path and .name, or use naive"
            )
        self.tokenizer = tokenizer
        self.compute_score = compute_score
        self.reward_fn_key = reward_fn_key
        self.reward_kwargs = reward_kwargs

    def reads(self, there: Collection[str]) -> tuple[str, ...]:
        wanted = ("responses", self.reward_fn_key, "reward_model", "extra_info", "reward_scores")
        return tuple(name for name in wanted if name in there)

    def score(self, batch: TrajectoryBatch) -> BatchRewards:
        texts = batch["responses"].split(batch.responses.lengths.tolist())
        rows = [{name: values[row] for name, values in batch.objects.items()} for row in range(len(batch))]
        returned = self.scores([RewardItem(ids.tolist(), row) for ids, row in zip(texts, rows, strict=True)])
        function = f"reward function {describe(self.compute_score)}"
        if len(returned) != len(batch):
            raise RewardError(f"{function} returned {len(returned)} scores for {len(batch)} rows")
        named = zip(batch.keys, returned, strict=True)
        results = [scored(value, function, f"trajectory {key}") for key, value in named]
        outcomes = outcome_scores([result.reward_score for result in results], batch.responses)
        return BatchRewards(outcomes, [result.reward_extra_info for result in results])

    def scores(self, items: Sequence[RewardItem]) -> Sequence[Any]:
        """What ``compute_score`` returns for ``items``."""
        samples = [item.sample for item in items]
        scores_of_tools = [sample.get("reward_scores") or {} for sample in samples]
        extras = [
            {**(sample.get("extra_info") or {}), "rollout_reward_scores": scores}
            for sample, scores in zip(samples, scores_of_tools, strict=True)
        ]
        return self.compute_score(
            data_sources=[sample.get(self.reward_fn_key) for sample in samples],
            solution_strs=[self.tokenizer.decode(list(item.response_ids), skip_special_tokens=True) for item in items],
            ground_truths=[(sample.get("reward_model") or {}).get("ground_truth") for sample in samples],
            extra_infos=extras,
            **self.reward_kwargs,
        )


def shared_by_sessions(rewards: Tensor, batch: TrajectoryBatch, rows: Tensor) -> Tensor:
    """Scores ``[T]`` of ``batch`` from those of its ``rows``, the last output of each session.

    A session's other outputs have its total on their own last response token, as where rollout scores them.
    """
    picked = batch.select(rows)
    totals = {
        (key.uid, key.session_id): float(total)
        for key, total in zip(picked.keys, picked.responses.sum(rewards.double()), strict=True)
    }
    column = outcome_scores([totals[key.uid, key.session_id] for key in batch.keys], batch.responses)
    is_picked = torch.zeros(len(batch), dtype=torch.bool)
    is_picked[rows] = True
    column[is_picked[batch.responses.rows]] = rewards
    return column
