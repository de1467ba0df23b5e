"""Between a ``DataProto`` and what the managers of ``runtime.reward`` take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compat.errors import DataProtoError, MissingColumnError
from compat.padding import position_ids_of
from compat.protocol import DataProto
from runtime.arrays import object_array
from runtime.reward import RewardItem

NUM_TURNS = "__num_turns__"
"""verl's column for the turns of a session."""


def response_lengths(data: DataProto) -> Tensor:
    """Tokens of each response, int64 ``[B]``, by the right part of ``attention_mask``.

    Raises MissingColumnError where a batch has no ``responses`` or ``attention_mask``.
    """
    there = [] if data.batch is None else list(data.batch.keys())
    if missing := [name for name in ("responses", "attention_mask") if name not in there]:
        raise MissingColumnError(f"a reward manager reads {missing}, and the DataProto has {sorted(there)}")
    width = data.batch["responses"].shape[-1]  # type: ignore[index]
    return data.batch["attention_mask"][:, -width:].sum(-1).long()  # type: ignore[index]


def items_of(data: DataProto) -> list[RewardItem]:
    """The rows of a padded batch, one a response; ``extra_info`` has the keys that verl's managers add to it."""
    lengths = response_lengths(data).tolist()
    batch: Any = data.batch
    prompts = batch["prompts"] if "prompts" in batch.keys() else batch["responses"][:, :0]  # noqa: SIM118
    prompt_lengths = batch["attention_mask"][:, : prompts.shape[1]].sum(-1).tolist()
    items = []
    for row, (length, prompt_length) in enumerate(zip(lengths, prompt_lengths, strict=True)):
        sample = {name: values[row] for name, values in data.non_tensor_batch.items()}
        turns = sample.get(NUM_TURNS)
        added = {"num_turns": turns, "rollout_reward_scores": sample.get("reward_scores") or {}}
        items.append(
            RewardItem(
                response_ids=batch["responses"][row, :length].tolist(),
                sample={**sample, "extra_info": {**(sample.get("extra_info") or {}), **added}},
                num_turns=turns,
                where=f"row {row} of the batch",
                prompt_ids=prompts[row, prompts.shape[1] - prompt_length :].tolist(),
            )
        )
    return items


def one_row(item: RewardItem) -> DataProto:
    """``item`` as the batch of one row that verl gives to ``run_single``, without padding."""
    prompts, responses = (torch.tensor([list(ids)], dtype=torch.int64) for ids in (item.prompt_ids, item.response_ids))
    mask = torch.ones(1, prompts.shape[1] + responses.shape[1], dtype=torch.int64)
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "response_mask": torch.ones_like(responses),
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": mask,
        "position_ids": position_ids_of(mask),
    }
    columns = {name: _own(value) for name, value in item.sample.items() if name not in tensors}
    columns["extra_info"] = dict(item.sample.get("extra_info") or {})
    columns[NUM_TURNS] = item.num_turns
    return DataProto.from_dict(tensors, {name: object_array([value]) for name, value in columns.items()})


def outcome_tensor(data: DataProto, scores: Sequence[float]) -> Tensor:
    """float32 ``[B, R]`` with the score of each row on its last response token, as every manager of verl files it."""
    lengths = response_lengths(data)
    tensor = torch.zeros_like(data.batch["responses"], dtype=torch.float32)  # type: ignore[index]
    if bool((lengths == 0).any()):
        raise DataProtoError(f"row {int((lengths == 0).nonzero()[0])} has no response token that could hold its score")
    tensor[torch.arange(len(lengths)), lengths - 1] = torch.tensor(scores, dtype=torch.float32)
    return tensor


def columns_of_infos(infos: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Dicts a row as lists a key, a row without the key left out, as verl collects them."""
    names = dict.fromkeys(name for info in infos for name in info)
    return {name: [info[name] for info in infos if name in info] for name in names}


def reward_columns(results: Mapping[str, Any], num_rows: int) -> dict[str, np.ndarray]:
    """What a reward function gave beside its scores, as the columns that verl's trainer makes of it: ``np.array``.

    What is not one value a row is left out, such as a mean of all; rows of unequal shapes, on which verl fails, become
    objects.
    """
    columns = {}
    for name, values in results.items():
        is_array = isinstance(values, np.ndarray | Tensor)
        sized = values.ndim > 0 if is_array else isinstance(values, Sequence) and not isinstance(values, str | bytes)
        if sized and len(values) == num_rows:
            try:
                columns[name] = np.array(values)
            except ValueError:
                columns[name] = object_array(list(values))
    return columns


def infos_of_columns(columns: Mapping[str, Sequence[Any]], num_rows: int) -> list[dict[str, Any]]:
    """Lists a key as dicts a row. Raises DataProtoError naming a list that does not have one value a row."""
    for name, values in columns.items():
        if len(values) != num_rows:
            raise DataProtoError(
                f"reward_extra_info[{name!r}] has {len(values)} values for {num_rows} rows; give every row one"
            )
    return [{name: values[row] for name, values in columns.items()} for row in range(num_rows)]


def _own(value: Any) -> Any:
    # Managers write into the dicts of a row, which sessions of one prompt share.
    return dict(value) if isinstance(value, dict) else value
