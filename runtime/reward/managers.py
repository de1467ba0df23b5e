"""Reward managers: from the tokens of one response to its score."""

from __future__ import annotations

import asyncio
import inspect
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from runtime.errors import RewardError
from runtime.reward.functions import ComputeScore, call_async, describe, is_async, with_room


@dataclass(frozen=True)
class RewardItem:
    """One response to score.

    response_ids: its tokens, eos included. sample: the dataset row (``data_source``, ``reward_model.ground_truth``,
    ``extra_info``, ``row_number``) and what the agent loop added to it. num_turns: user and assistant turns; the
    function sees it in ``extra_info``. where: file and row of the sample, for messages; without it they name the
    ``row_number``. prompt_ids: the tokens before the response.
    """

    response_ids: Sequence[int]
    sample: Mapping[str, Any]
    num_turns: int | None = None
    where: str | None = None
    prompt_ids: Sequence[int] = ()


@dataclass(frozen=True)
class RewardResult:
    """reward_score: the outcome, finite. reward_extra_info: what else the function returned, for metrics and dumps."""

    reward_score: float
    reward_extra_info: dict[str, Any] = field(default_factory=dict)


class RewardManager(ABC):
    """Scores one response at a time (verl's ``RewardManagerBase.run_single``).

    reward_fn_key: the column that names the source. locate: file and row of a ``row_number``, for messages.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        compute_score: ComputeScore,
        reward_fn_key: str = "data_source",
        locate: Callable[[int], str] = "row {}".format,
    ) -> None:
        self.tokenizer = tokenizer
        self.compute_score = compute_score
        self.reward_fn_key = reward_fn_key
        self.locate = locate

    @abstractmethod
    async def run_single(self, item: RewardItem) -> RewardResult:
        """Score ``item``; raises RewardError."""


class NaiveRewardManager(RewardManager):
    """Decode the response without special tokens and call ``compute_score`` on it (verl's ``naive``)."""

    async def run_single(self, item: RewardItem) -> RewardResult:
        """Score ``item``; a plain number becomes ``acc`` in the extra info, as in verl.

        Raises RewardError naming function, file and row, and data_source when the function raises or returns what is
        neither a finite number nor a dict with a finite ``score``.
        """
        arguments = self.arguments(item)
        with self._naming(item):
            returned = await self._call(arguments)
        return self.adjusted(item, self.result(returned, self.where(item)))

    def run_here(self, item: RewardItem) -> RewardResult:
        """As ``run_single``, in the caller's thread: functions that set an alarm only run in the main one."""
        arguments = self.arguments(item)
        with self._naming(item):
            returned = self.compute_score(**arguments)
            if inspect.isawaitable(returned):
                returned = asyncio.run(call_async(returned))
        return self.adjusted(item, self.result(returned, self.where(item)))

    def adjusted(self, item: RewardItem, result: RewardResult) -> RewardResult:  # noqa: ARG002
        """What becomes of the function's score; a subclass may add to it."""
        return result

    def arguments(self, item: RewardItem) -> dict[str, Any]:
        """The keywords of ``compute_score`` for ``item``; RewardError names a row that lacks a column for them."""
        sample = item.sample
        reward_model = sample.get("reward_model")
        has_truth = isinstance(reward_model, Mapping) and "ground_truth" in reward_model
        if reward_model is None or not has_truth or self.reward_fn_key not in sample:
            raise RewardError(
                f"{self._row(item)} cannot be scored: it needs the columns {self.reward_fn_key!r} and "
                f"'reward_model' with 'ground_truth', and has {sorted(sample)}"
            )
        extra_info = dict(sample.get("extra_info") or {})
        extra_info.update(sample.get("tool_extra_fields") or {})
        if item.num_turns is not None:
            extra_info["num_turns"] = item.num_turns
        if "reward_scores" in sample:
            extra_info["rollout_reward_scores"] = sample["reward_scores"]
        arguments = {
            "data_source": sample[self.reward_fn_key],
            "solution_str": self.tokenizer.decode(list(item.response_ids), skip_special_tokens=True),
            "ground_truth": reward_model["ground_truth"],
            "extra_info": extra_info,
        }
        return with_room(self.compute_score, arguments)

    def where(self, item: RewardItem) -> str:
        """File, row and source of ``item``, for messages."""
        return f"{self._row(item)} ({self.reward_fn_key} {item.sample.get(self.reward_fn_key)!r})"

    def result(self, returned: Any, where: str) -> RewardResult:
        """What ``compute_score`` returned as a score and its extra info; RewardError where it is not finite."""
        return scored(returned, f"reward function {describe(self.compute_score)}", where)

    @contextmanager
    def _naming(self, item: RewardItem) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise RewardError(
                f"reward function {describe(self.compute_score)} raised {type(error).__name__}: {error} "
                f"for {self.where(item)}"
            ) from error

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        # One thread: a function that keeps state sees one call at a time, and the event loop stays free.
        return ThreadPoolExecutor(max_workers=1, thread_name_prefix="reward")

    async def _call(self, arguments: dict[str, Any]) -> Any:
        if is_async(self.compute_score):
            return await self.compute_score(**arguments)
        loop = asyncio.get_running_loop()
        return await call_async(await loop.run_in_executor(self._thread, lambda: self.compute_score(**arguments)))

    def _row(self, item: RewardItem) -> str:
        if item.where is not None:
            return item.where
        number = item.sample.get("row_number")
        return "a row without row_number" if number is None else self.locate(int(number))


def scored(returned: Any, function: str, where: str) -> RewardResult:
    """A number, or a dict with ``score``, as a score and its extra info; a plain number is ``acc`` there.

    function, where: for the RewardError of what is neither, or not finite.
    """
    is_dict = isinstance(returned, Mapping)
    score = plain(returned.get("score") if is_dict else returned)
    if not (isinstance(score, numbers.Real) and math.isfinite(score)):
        raise RewardError(
            f"{function} returned {returned!r} for {where}; expected a finite number, or a dict whose 'score' is one"
        )
    info = {key: plain(value) for key, value in returned.items()} if is_dict else {"acc": float(score)}
    return RewardResult(float(score), info)


def plain(value: Any) -> Any:
    """A Python number for a numpy or torch value of one element; anything else as it is."""
    is_array = isinstance(value, np.generic | np.ndarray | torch.Tensor)
    return value.item() if is_array and math.prod(value.shape) == 1 else value
