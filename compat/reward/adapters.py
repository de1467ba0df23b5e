"""Managers of recipes, called as verl calls them: one response in rollout, or a whole batch in the stage ``reward``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from compat.algorithms.signatures import Signature
from compat.errors import DataProtoError
from compat.padding import pack_right_padded
from compat.protocol import DataProto
from compat.reward.rows import NUM_TURNS, infos_of_columns, one_row
from compat.trajectories import to_dataproto
from runtime.arrays import object_array
from runtime.errors import ConfigError, RewardError
from runtime.fields import CARRIERS
from runtime.reward import BatchRewardManager, BatchRewards, RewardItem, RewardManager, RewardResult
from runtime.reward.managers import plain, scored
from runtime.trajectories import TrajectoryBatch

_NOT_READ = {"attention_mask", "dummy_tensor", *CARRIERS}
"""What a legacy batch holds beside trajectories; a manager is given its own attention_mask."""


def per_response(
    manager_class: type, config: DictConfig, tokenizer: Any, compute_score: Callable[..., Any], more: Mapping[str, Any]
) -> RewardManager:
    """What calls a recipe's manager of one response; see ``response_manager``."""
    manager = response_manager(manager_class, config, tokenizer, compute_score, more)
    return ResponseAdapter(manager, tokenizer, compute_score, config.data.reward_fn_key)


def response_manager(
    manager_class: type, config: Any, tokenizer: Any, compute_score: Callable[..., Any], more: Mapping[str, Any]
) -> Any:
    """An object of ``manager_class``, which defines ``run_single``: ``(config, tokenizer, compute_score)``.

    more: ``reward.reward_kwargs``, of which it gets those that it names; verl's read the others from the config.
    """
    signature = Signature.of(manager_class)
    offered: dict[str, Any] = {"reward_router_address": None, "reward_model_tokenizer": None, "num_examine": 0}
    offered |= {"config": config, "reward_fn_key": config.data.get("reward_fn_key", "data_source")}
    named = {name: value for name, value in {**offered, **more}.items() if _names(signature, name)}
    return build(manager_class, {"tokenizer": tokenizer, "compute_score": compute_score, **named})


def per_batch(
    manager_class: type, config: DictConfig, tokenizer: Any, compute_score: Callable[..., Any], more: Mapping[str, Any]
) -> BatchRewardManager:
    """The batch-level manager that ``manager_class`` is, built with verl's arguments; see ``batch_manager``."""
    data = config.data
    manager = batch_manager(manager_class, config, tokenizer, compute_score, 0, more)
    return BatchAdapter(manager, (data.max_prompt_length, data.max_response_length), tokenizer)


def batch_manager(
    manager_class: type,
    config: Any,
    tokenizer: Any,
    compute_score: Callable[..., Any] | None,
    num_examine: int,
    more: Mapping[str, Any],
) -> Any:
    """An object of ``manager_class``: ``(tokenizer, num_examine, compute_score, reward_fn_key, **more)``.

    ``reward_fn_key`` is left out for a class without it, as before verl 0.3; one that takes ``config`` gets it.
    """
    signature = Signature.of(manager_class)
    arguments = {"tokenizer": tokenizer, "num_examine": num_examine, "compute_score": compute_score}
    if signature.accepts("reward_fn_key"):
        arguments["reward_fn_key"] = config.data.get("reward_fn_key", "data_source")
    if _names(signature, "config"):
        arguments["config"] = config
    return build(manager_class, {**arguments, **more})


def build(manager_class: type, arguments: Mapping[str, Any]) -> Any:
    """``manager_class(**arguments)``; ConfigError names what it does not take, or wants besides."""
    signature = Signature.of(manager_class)
    unknown = [name for name in arguments if not signature.accepts(name)]
    missing = [name for name in signature.required if name not in arguments]
    if unknown or missing:
        raise ConfigError(
            f"reward manager {manager_class.__qualname__} does not take {unknown} and needs {missing}: it is given "
            "tokenizer, num_examine, compute_score, reward_fn_key, config and what reward.reward_kwargs holds"
        )
    return manager_class(**arguments)


class ResponseAdapter(RewardManager):
    """Calls ``run_single`` of a recipe's manager with a ``DataProto`` of one row."""

    def __init__(
        self, manager: Any, tokenizer: PreTrainedTokenizerBase, compute_score: Callable[..., Any], reward_fn_key: str
    ) -> None:
        super().__init__(tokenizer, compute_score, reward_fn_key)
        self.manager = manager

    async def run_single(self, item: RewardItem) -> RewardResult:
        """Score ``item``; RewardError names manager and row where it raises or returns no finite ``reward_score``."""
        name = f"reward manager {type(self.manager).__qualname__}"
        where = item.where or f"row {item.sample.get('row_number')}"
        try:
            returned = await self.manager.run_single(one_row(item))
        except Exception as error:
            raise RewardError(f"{name} raised {type(error).__name__}: {error} for {where}") from error
        if not isinstance(returned, Mapping) or "reward_score" not in returned:
            raise RewardError(f"{name} returned {returned!r} for {where}; expected a dict with 'reward_score'")
        score = scored(returned["reward_score"], name, where).reward_score
        info = returned.get("reward_extra_info") or {}
        return RewardResult(score, {key: plain(value) for key, value in info.items()})


class BatchAdapter(BatchRewardManager):
    """Calls a recipe's batch-level manager with a padded ``DataProto`` of the whole batch.

    widths: of prompts and responses, as the legacy trainer pads them.
    """

    def __init__(self, manager: Any, widths: tuple[int, int], tokenizer: PreTrainedTokenizerBase) -> None:
        self.manager = manager
        self.widths = widths
        self.pad_token_id = pad_token_id(tokenizer)

    def reads(self, there: Collection[str]) -> tuple[str, ...]:
        return tuple(sorted(set(there) - _NOT_READ))

    def score(self, batch: TrajectoryBatch) -> BatchRewards:
        """Score ``batch``. RewardError names the manager, and a trajectory whose reward lies behind its response."""
        data = padded(batch, self.widths, self.pad_token_id)
        name = f"reward manager {type(self.manager).__qualname__}"
        try:
            tensor, extra_info = call(self.manager, data)
            infos = infos_of_columns(extra_info, len(batch))
        except Exception as error:
            raise RewardError(f"{name} raised {type(error).__name__}: {error}") from error
        scores = token_rewards(tensor, data, name).to("cpu", torch.float32)
        lost = (scores != 0) & (data.batch["attention_mask"][:, -self.widths[1] :] == 0)  # type: ignore[index]
        if bool(lost.any()):
            row = int(lost.any(1).nonzero()[0])
            raise RewardError(f"{name} put a reward of trajectory {batch.keys[row]} behind its last response token")
        plain_infos = [{key: plain(value) for key, value in info.items()} for info in infos]
        return BatchRewards(pack_right_padded(scores, batch.responses.lengths), plain_infos)


def call(manager: Any, data: DataProto) -> tuple[Any, dict[str, Any]]:
    """``reward_tensor`` and ``reward_extra_info`` that ``manager(data)`` returns, in whichever form it does.

    The first managers had no ``return_dict`` and returned the tensor alone; some return it beside the dict.
    """
    takes_form = Signature.of(manager).accepts("return_dict")
    returned = manager(data, return_dict=True) if takes_form else manager(data)
    if isinstance(returned, tuple) and len(returned) == 2:
        returned = {"reward_tensor": returned[0], "reward_extra_info": returned[1]}
    if not isinstance(returned, Mapping):
        return returned, {}
    if "reward_tensor" not in returned:
        raise DataProtoError(f"a reward manager returned a dict with {sorted(returned)}, without 'reward_tensor'")
    info = returned.get("reward_extra_info") or {}
    if not isinstance(info, Mapping):
        raise DataProtoError(
            f"reward_extra_info of a reward manager is a {type(info).__name__}; "
            "it must be a dict of lists, one value a row"
        )
    return returned["reward_tensor"], dict(info)


def token_rewards(returned: Any, data: DataProto, name: str) -> Tensor:
    """``returned`` as rewards ``[B, R]`` of ``data``'s responses. Else RewardError tells ``name`` and what it gave."""
    rewards = torch.from_numpy(returned) if isinstance(returned, np.ndarray) else returned
    wanted = tuple(data.batch["responses"].shape)  # type: ignore[index]
    if not isinstance(rewards, Tensor) or rewards.shape != wanted:
        gave = tuple(rewards.shape) if isinstance(rewards, Tensor) else type(rewards).__name__
        raise RewardError(f"{name} returned {gave}, expected {wanted}, a reward a token")
    rewards = rewards.detach()
    return rewards if rewards.is_floating_point() else rewards.float()


def pad_token_id(tokenizer: Any) -> int:
    """What the legacy trainer pads token ids with: the tokenizer's padding token, or its end of text."""
    return tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id


def padded(batch: TrajectoryBatch, widths: tuple[int, int], pad_token_id: int) -> DataProto:
    """``batch`` as a legacy batch whose dicts are its own: managers write into them."""
    objects = {
        name: object_array([dict(value) if isinstance(value, dict) else value for value in values])
        for name, values in batch.objects.items()
    }
    if "num_turns" in batch:
        objects[NUM_TURNS] = object_array(batch["num_turns"].tolist())
    whole = TrajectoryBatch(batch.keys, batch.prompts, batch.responses, batch.columns, objects)
    return to_dataproto(whole, *widths, pad_token_id)


def _names(signature: Signature, name: str) -> bool:
    return name in signature.required or name in signature.optional
