"""Managers of one response under verl's names (``verl.experimental.reward_loop.reward_manager``).

``run_single`` takes a ``DataProto`` whose last row is the response. Each is the manager of that name in
``runtime.reward``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from omegaconf import OmegaConf
from torch import Tensor

from compat.protocol import DataProto
from compat.reward.loops import event_loop, run_all
from compat.reward.managers import Reward, rewards_there
from compat.reward.rows import columns_of_infos, items_of, outcome_tensor
from runtime.reward import DAPORewardManager as DAPOCore
from runtime.reward import NaiveRewardManager as NaiveCore
from runtime.reward import RateLimitedRewardManager as RateLimitedCore
from runtime.reward import default_compute_score


class RewardManagerBase(ABC):
    """The base class of managers of one response (verl 0.7 on)."""

    _class_initialized = False

    def __init__(self, config: Any, tokenizer: Any, compute_score: Callable[..., Any] | None) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.compute_score = compute_score
        self.loop = event_loop()
        self.init_class(config, tokenizer)

    @classmethod
    def init_class(cls, config: Any, tokenizer: Any) -> None:  # noqa: ARG003
        """Set up what all instances share; called once a class."""
        cls._class_initialized = True

    @abstractmethod
    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """``reward_score`` and ``reward_extra_info`` of the last row of ``data``."""

    @classmethod
    def assemble_rm_scores(cls, data: DataProto, scores: Sequence[float]) -> Tensor:
        """Scores ``[B]`` on the last response token of each row, float32 ``[B, R]``."""
        return outcome_tensor(data, torch.as_tensor(scores, dtype=torch.float32).tolist())

    def __call__(self, data: DataProto, return_dict: bool = False) -> Reward:
        """Score a padded batch row by row, unless it has ``rm_scores``: what old recipes call a manager for."""
        there = rewards_there(data, return_dict)
        return there if there is not None else call_on_rows(self, data, return_dict)


def call_on_rows(manager: Any, data: DataProto, return_dict: bool) -> Reward:
    """``manager.run_single`` of each row of ``data``, in the form of a batch-level manager."""
    rows = [data.select_idxs([row]) for row in range(len(data))]
    results = run_all([manager.run_single(row) for row in rows], getattr(manager, "loop", None))
    assemble = getattr(manager, "assemble_rm_scores", outcome_tensor)
    tensor = assemble(data, [float(result["reward_score"]) for result in results])
    infos = columns_of_infos([result.get("reward_extra_info") or {} for result in results])
    return {"reward_tensor": tensor, "reward_extra_info": infos} if return_dict else tensor


class NaiveRewardManager(RewardManagerBase):
    """``compute_score`` on the decoded response (verl's ``naive``)."""

    core_class: ClassVar[type[NaiveCore]] = NaiveCore

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: Callable[..., Any] | None = None,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
    ) -> None:
        super().__init__(config, tokenizer, compute_score or default_compute_score)
        self.reward_router_address = reward_router_address
        self.reward_model_tokenizer = reward_model_tokenizer
        self._core = self.core_class(tokenizer, self.compute_score, **self._settings())  # type: ignore[arg-type]

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        result = await self._core.run_single(items_of(data.select_idxs([len(data) - 1]))[0])
        return {"reward_score": result.reward_score, "reward_extra_info": dict(result.reward_extra_info)}

    def _settings(self) -> dict[str, Any]:
        """Arguments of the core that the config holds."""
        return {}

    def _reward_group(self) -> Mapping[str, Any]:
        group = OmegaConf.select(self.config, "reward") if OmegaConf.is_config(self.config) else None
        return OmegaConf.to_container(group, resolve=True) if group is not None else {}  # type: ignore[return-value]


class GDPORewardManager(NaiveRewardManager):
    """As ``naive``: the scores that GDPO weighs are those in the function's dict (verl's ``gdpo``)."""


class RemoteRewardManager(NaiveRewardManager):
    """As ``naive``, where the response is; verl runs the function in processes of its own (``remote``)."""


class DAPORewardManager(NaiveRewardManager):
    """As ``naive``, less a penalty for overlong responses; ``reward.reward_kwargs`` describes it (verl's ``dapo``)."""

    core_class = DAPOCore

    def _settings(self) -> dict[str, Any]:
        kwargs = self._reward_group().get("reward_kwargs") or {}
        return {name: kwargs.get(name) for name in ("max_resp_len", "overlong_buffer_cfg")}


class RateLimitedRewardManager(NaiveRewardManager):
    """With limits a minute, in the keys that ``runtime.reward.RateLimitedRewardManager`` names (``rate_limited``).

    They are read from ``reward.reward_kwargs``, and from ``reward`` itself as in verl.
    """

    core_class = RateLimitedCore

    def _settings(self) -> dict[str, Any]:
        group = self._reward_group()
        held = {**group, **(group.get("reward_kwargs") or {})}
        names = ("max_concurrent", "max_rpm", "max_tpm", "estimated_tokens_per_request", "timeout")
        return {name: held[name] for name in names if held.get(name) is not None}
