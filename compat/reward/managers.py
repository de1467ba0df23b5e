"""Batch-level managers under verl's names (``verl.workers.reward_manager``): a padded ``DataProto`` in, ``[B, R]`` out.

Each is the manager of ``runtime.reward`` of that name, called row by row or once for all rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from compat.protocol import DataProto
from compat.reward.loops import run_all
from compat.reward.rows import columns_of_infos, items_of, outcome_tensor
from runtime.reward import BatchedFunctionManager, RewardItem, RewardResult, default_compute_score
from runtime.reward import DAPORewardManager as DAPOCore
from runtime.reward import NaiveRewardManager as NaiveCore
from runtime.reward import PrimeRewardManager as PrimeCore
from runtime.reward.managers import scored

Reward = Tensor | dict[str, Any]
"""``reward_tensor`` float32 ``[B, R]``, or with ``return_dict`` a dict of that and ``reward_extra_info``."""


class AbstractRewardManager(ABC):
    """The base class of batch-level managers (``verl.workers.reward_manager.AbstractRewardManager``)."""

    @abstractmethod
    def __init__(
        self,
        tokenizer: Any,
        num_examine: int,
        compute_score: Callable[..., Any] | None,
        reward_fn_key: str = "data_source",
        **kwargs: Any,
    ) -> None: ...

    @abstractmethod
    def __call__(self, data: DataProto, return_dict: bool = False) -> Reward:
        """Score a batch."""

    def _extract_reward_from_rm_scores(self, data: DataProto, return_dict: bool = False) -> Reward | None:
        """``rm_scores`` that are in the batch already, which every manager returns as they are; ``None`` without."""
        return rewards_there(data, return_dict)


def rewards_there(data: DataProto, return_dict: bool) -> Reward | None:
    """``rm_scores`` of the batch and the columns that ``meta_info["reward_extra_keys"]`` names, in verl's form."""
    if data.batch is None or "rm_scores" not in data.batch.keys():  # noqa: SIM118
        return None
    keys = data.meta_info.get("reward_extra_keys", [])
    return _in_form(data.batch["rm_scores"], {key: data.non_tensor_batch[key] for key in keys}, return_dict)


class NaiveRewardManager(AbstractRewardManager):
    """``compute_score`` on each response, in the caller's thread (verl's ``naive``).

    num_examine: responses of each data source that are printed. compute_score_timeout: seconds after which an answer
    scores 0, as one whose function raises then does.
    """

    core_class: ClassVar[type[NaiveCore]] = NaiveCore
    plain_as_acc: ClassVar[bool] = False
    """Whether a score that comes as a plain number is filed as ``acc`` in the extra info."""

    def __init__(
        self,
        tokenizer: Any,
        num_examine: int,
        compute_score: Callable[..., Any] | None = None,
        reward_fn_key: str = "data_source",
        compute_score_timeout: float | None = None,
        **settings: Any,
    ) -> None:
        self.tokenizer = tokenizer
        self.num_examine = num_examine
        self.compute_score = compute_score or default_compute_score
        self.reward_fn_key = reward_fn_key
        self.compute_score_timeout = compute_score_timeout
        self._settings = settings
        self._core()  # refuses settings that do not fit

    def __call__(self, data: DataProto, return_dict: bool = False) -> Reward:
        """Score each row of ``data``, unless it has ``rm_scores``; a row's score lies on its last response token."""
        there = self._extract_reward_from_rm_scores(data, return_dict)
        if there is not None:
            return there
        items = items_of(data)
        results = self._results(items)
        self._examine(items, results)
        infos = [
            result.reward_extra_info if self.plain_as_acc or "score" in result.reward_extra_info else {}
            for result in results
        ]
        tensor = outcome_tensor(data, [result.reward_score for result in results])
        return _in_form(tensor, columns_of_infos(infos), return_dict)

    def _core(self) -> NaiveCore:
        # Made anew from the attributes, which subclasses set and change.
        if self.compute_score_timeout is not None:
            settings = {"timeout": self.compute_score_timeout, "max_concurrent": 1}
            return PrimeCore(self.tokenizer, self.compute_score, self.reward_fn_key, **settings)  # type: ignore[arg-type]
        return self.core_class(self.tokenizer, self.compute_score, self.reward_fn_key, **self._settings)

    def _results(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        core = self._core()
        if isinstance(core, PrimeCore):
            return run_all([core.run_single(item) for item in items])
        return [core.run_here(item) for item in items]

    def _examine(self, items: Sequence[RewardItem], results: Sequence[RewardResult]) -> None:
        shown: Counter[Any] = Counter()
        for item, result in zip(items, results, strict=True):
            source = item.sample.get(self.reward_fn_key)
            if shown[source] >= self.num_examine:
                continue
            shown[source] += 1
            for name, ids in (("prompt", item.prompt_ids), ("response", item.response_ids)):
                print(f"[{name}] {self.tokenizer.decode(list(ids), skip_special_tokens=True)}")
            print(f"[ground_truth] {item.sample['reward_model']['ground_truth']}")
            print(f"[score] {result.reward_score} {result.reward_extra_info}")


class DAPORewardManager(NaiveRewardManager):
    """As ``naive``, less a penalty for overlong responses (verl's ``dapo``)."""

    core_class = DAPOCore
    plain_as_acc = True

    def __init__(
        self,
        tokenizer: Any,
        num_examine: int,
        compute_score: Callable[..., Any] | None = None,
        reward_fn_key: str = "data_source",
        max_resp_len: int | None = None,
        overlong_buffer_cfg: Any = None,
    ) -> None:
        self.max_resp_len = max_resp_len
        self.overlong_buffer_cfg = overlong_buffer_cfg
        super().__init__(
            tokenizer,
            num_examine,
            compute_score,
            reward_fn_key,
            max_resp_len=max_resp_len,
            overlong_buffer_cfg=overlong_buffer_cfg,
        )


class PrimeRewardManager(NaiveRewardManager):
    """Many responses at once; one that takes too long or fails scores 0 (verl's ``prime``)."""

    core_class = PrimeCore

    def verify(self, data: DataProto) -> list[float]:
        """The score of each row, also filed as the column ``acc``."""
        scores = [result.reward_score for result in self._results(items_of(data))]
        data.batch["acc"] = torch.tensor(scores, dtype=torch.float32)  # type: ignore[index]
        return scores

    def __call__(self, data: DataProto, return_dict: bool = False) -> Reward:
        """As ``NaiveRewardManager``, without extra info."""
        there = self._extract_reward_from_rm_scores(data, return_dict)
        if there is not None:
            return there
        tensor = outcome_tensor(data, self.verify(data))
        return {"reward_tensor": tensor} if return_dict else tensor


class BatchRewardManager(AbstractRewardManager):
    """One call of ``compute_score`` with lists of all rows (verl's ``batch``)."""

    def __init__(
        self,
        tokenizer: Any,
        num_examine: int,
        compute_score: Callable[..., Any],
        reward_fn_key: str = "data_source",
        **reward_kwargs: Any,
    ) -> None:
        self.tokenizer = tokenizer
        self.num_examine = num_examine
        self.compute_score = compute_score
        self.reward_fn_key = reward_fn_key
        self.reward_kwargs = reward_kwargs

    def verify(self, data: DataProto) -> Sequence[Any]:
        """What ``compute_score`` returns for the rows: numbers, or dicts with ``score``."""
        core = BatchedFunctionManager(self.tokenizer, self.compute_score, self.reward_fn_key, **self.reward_kwargs)
        return core.scores(items_of(data))

    def __call__(self, data: DataProto, return_dict: bool = False) -> Reward:
        """Score ``data``, unless it has ``rm_scores``; the scores are also filed as the column ``acc``."""
        there = self._extract_reward_from_rm_scores(data, return_dict)
        if there is not None:
            return there
        returned = self.verify(data)
        scores = [
            scored(value, type(self).__qualname__, f"row {row}").reward_score for row, value in enumerate(returned)
        ]
        tensor = outcome_tensor(data, scores)
        data.batch["acc"] = torch.tensor(scores, dtype=torch.float32)  # type: ignore[index]
        return _in_form(tensor, columns_of_infos([v for v in returned if isinstance(v, Mapping)]), return_dict)


def _in_form(tensor: Tensor, extra_info: Mapping[str, Any], return_dict: bool) -> Reward:
    return {"reward_tensor": tensor, "reward_extra_info": dict(extra_info)} if return_dict else tensor
