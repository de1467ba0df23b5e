"""The rows that a trainer or a recipe hands to rollout, as sessions; and the answer as it expects it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from omegaconf import DictConfig

from compat.errors import MissingColumnError
from compat.protocol import DataProto
from runtime.agent_loop import Submission
from runtime.agent_loop.runner import session_params
from runtime.arrays import object_array
from runtime.data.files import ROW_NUMBER
from runtime.identity import PromptIdentity
from runtime.rollout.types import SamplingParams

REWARD_COLUMNS = ("data_source", "reward_model")
"""What a row needs to be scored by a worker."""

_GREEDY = "__do_sample__"
"""verl's object column that says row by row whether to sample."""


CountPrompts: TypeAlias = Callable[[str, int, Mapping[int, int]], Mapping[int, int]]
"""Given partition, step and how many prompts there are of each dataset row, how many of that row came before them."""


def session_requests(
    prompts: DataProto, config: DictConfig, step: int, count: CountPrompts
) -> list[tuple[Submission, int, SamplingParams]]:
    """The session that each row asks for.

    Rows of this trainer bring ``submission`` and ``session_id``. Rows of a recipe are taken as they are: those of one
    ``uid``, or without it of one prompt, are the sessions of one prompt, numbered in row order; their seeds are drawn
    from (``runtime.seed``, partition, step, dataset row or place, occurrence, session), so that no two rows share one.

    step: the training step. count: what knows the prompts of earlier calls in this step.
    """
    params = session_params(config, bool(prompts.meta_info.get("validate", False)))
    if "submission" in prompts.non_tensor_batch:
        sessions = [int(number) for number in prompts.non_tensor_batch["session_id"]]
        submissions = prompts.non_tensor_batch["submission"]
        return [(row, session, params[session]) for row, session in zip(submissions, sessions, strict=True)]
    sampled = params[0]
    if not prompts.meta_info.get("do_sample", True):
        sampled = replace(sampled, do_sample=False)
    greedy = replace(sampled, do_sample=False)
    samples = prompt_rows(prompts)
    flags = prompts.non_tensor_batch.get(_GREEDY, np.ones(len(samples), dtype=bool))
    return [
        (submission, session, sampled if flag else greedy)
        for (submission, session), flag in zip(_numbered(samples, prompts, config, step, count), flags, strict=True)
    ]


def prompt_rows(prompts: DataProto) -> list[dict[str, Any]]:
    """What an agent loop is given of each row: its object columns, and ``raw_prompt_ids`` where it has no messages.

    Raises ``MissingColumnError`` where rows hold no prompt in any form.
    """
    columns = {name: array for name, array in prompts.non_tensor_batch.items() if name != _GREEDY}
    if "raw_prompt" not in columns and "raw_prompt_ids" not in columns:
        columns["raw_prompt_ids"] = _token_ids(prompts)
    return [{name: array[row] for name, array in columns.items()} for row in range(len(prompts))]


def is_repeated(prompts: DataProto, n: int, prompts_a_step: int) -> bool:
    """Whether every prompt is there n times already, as recipes since verl 0.5 repeat it themselves.

    prompts_a_step: what the loader yields at once. A batch of as many rows, or of n times as many, is what it looks
    like; of any other, prompts are counted by what they say, since a ``uid`` may be of the prompt or of the row.
    """
    if len(prompts) in (prompts_a_step, n * prompts_a_step):
        return len(prompts) == n * prompts_a_step
    counts = Counter(_content_of(row) for row in prompt_rows(prompts))
    return all(count % n == 0 for count in counts.values())


def answer_in_kind(prompts: DataProto, played: DataProto, seconds: float) -> DataProto:
    """``played`` with the columns and ``meta_info`` that ``fit`` of verl 0.2 to 0.9 reads.

    ``uid`` is the one that the rows came with, or absent; ``__num_turns__``, ``multi_modal_inputs`` (empty) and one
    object column for each key of the reward function's extra info are added; ``meta_info["timing"]`` is in seconds.
    """
    if "submission" in prompts.non_tensor_batch:
        return played
    rows = len(played)
    arrays = dict(played.non_tensor_batch)
    arrays.pop("uid")
    # Its numbers are of this call: a recipe that puts several calls together would see rows under one key.
    arrays.pop("session_id")
    if "uid" in prompts.non_tensor_batch:
        arrays["uid"] = prompts.non_tensor_batch["uid"]
    arrays["__num_turns__"] = played["num_turns"].numpy().astype(np.int32)
    arrays["multi_modal_inputs"] = object_array([{} for _ in range(rows)])
    infos = arrays.pop("reward_extra_info", None)
    keys = list(dict.fromkeys(key for info in ([] if infos is None else infos) for key in info))
    # What the rows hold already stays theirs; a union would refuse a second column of that name.
    new = [key for key in keys if key not in prompts.non_tensor_batch]
    arrays |= {key: object_array([info.get(key) for info in infos]) for key in new}  # type: ignore[union-attr]
    meta_info: dict[str, Any] = {**prompts.meta_info, "timing": {"generate_sequences": seconds}}
    if "rm_scores" in played.batch.keys():  # type: ignore[union-attr]  # noqa: SIM118
        meta_info["reward_extra_keys"] = new
    return DataProto(played.batch, arrays, meta_info)


def _numbered(
    samples: list[dict[str, Any]], prompts: DataProto, config: DictConfig, step: int, count: CountPrompts
) -> list[tuple[Submission, int]]:
    """Submission and session number of each row."""
    partition = "val" if prompts.meta_info.get("validate", False) else "train"
    names = [_prompt_of(sample) for sample in samples]
    places: dict[Hashable, int] = {}
    rows: dict[Hashable, int] = {}
    occurrences: dict[Hashable, int] = {}
    together: Counter[int] = Counter()
    for name, sample in zip(names, samples, strict=True):
        if name not in places:
            places[name] = len(places)
            rows[name] = int(sample.get(ROW_NUMBER, places[name]))
            occurrences[name] = together[rows[name]]
            together[rows[name]] += 1
    before = count(partition, step, together)
    sessions: Counter[Hashable] = Counter()
    numbered = []
    for name, sample in zip(names, samples, strict=True):
        row = rows[name]
        identity = PromptIdentity(config.runtime.seed, partition, step, row, before[row] + occurrences[name])
        where = f"row {row} of step {step} of generate_sequences"
        numbered.append((Submission(identity, places[name], sample, where), sessions[name]))
        sessions[name] += 1
    return numbered


def _prompt_of(sample: Mapping[str, Any]) -> Hashable:
    """What rows of one prompt have in common."""
    return str(sample["uid"]) if "uid" in sample else _content_of(sample)


def _content_of(sample: Mapping[str, Any]) -> Hashable:
    if "raw_prompt_ids" in sample:
        return tuple(int(token) for token in sample["raw_prompt_ids"])
    return repr(list(sample["raw_prompt"]))


def _token_ids(prompts: DataProto) -> np.ndarray:
    """The unpadded ``input_ids`` of each row."""
    there = () if prompts.batch is None else prompts.batch.keys()
    if missing := {"input_ids", "attention_mask"} - set(there):
        raise MissingColumnError(
            f"rows to generate from need raw_prompt, raw_prompt_ids, or input_ids with attention_mask; "
            f"{sorted(missing)} are not there, only {sorted([*there, *prompts.non_tensor_batch])}"
        )
    ids, mask = prompts["input_ids"], prompts["attention_mask"].to(torch.bool)
    return object_array([row[exists].tolist() for row, exists in zip(ids, mask, strict=True)])
