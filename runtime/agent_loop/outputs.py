"""From the outputs of sessions to trajectories on the packed layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runtime.agent_loop.base import AgentLoopOutput
from runtime.arrays import object_array
from runtime.errors import RolloutError
from runtime.identity import TrajectoryKey
from runtime.trajectories import TrajectoryBatch, outcome_scores
from shared_algos.segments import Segments


def as_trajectories(
    keys: Sequence[TrajectoryKey],
    outputs: Sequence[AgentLoopOutput],
    samples: Sequence[Mapping[str, Any]],
    limits: tuple[int, int],
) -> TrajectoryBatch:
    """Pack B outputs with the dataset rows they came from.

    limits: ``data.max_prompt_length`` and ``data.max_response_length``; ``RolloutError`` names an output beyond them.
    Writes the fields of stage ``rollout``: token columns, ``rollout_log_probs`` when every output has them, and
    ``rm_scores`` (the outcome on the last response token, 0 elsewhere) when every output was scored.
    """
    for key, output in zip(keys, outputs, strict=True):
        _check(key, output, limits)
    prompts = Segments.from_lengths([len(output.prompt_ids) for output in outputs])
    responses = Segments.from_lengths([len(output.response_ids) for output in outputs])
    sequences = [output.prompt_ids + output.response_ids for output in outputs]
    columns = {
        "prompts": _pack([output.prompt_ids for output in outputs], torch.int64),
        "responses": _pack([output.response_ids for output in outputs], torch.int64),
        "input_ids": _pack(sequences, torch.int64),
        "position_ids": Segments.from_lengths([len(sequence) for sequence in sequences]).positions,
        "response_mask": _pack([output.response_mask for output in outputs], torch.int64),
        "num_turns": torch.tensor([output.num_turns for output in outputs], dtype=torch.int64),
    }
    if all(output.response_logprobs is not None for output in outputs):
        columns["rollout_log_probs"] = _pack([output.response_logprobs or [] for output in outputs], torch.float32)
    if all(output.reward_score is not None for output in outputs):
        columns["rm_scores"] = outcome_scores([output.reward_score or 0.0 for output in outputs], responses)
    if all(output.reward_baseline is not None for output in outputs):
        columns["reward_baselines"] = torch.tensor([output.reward_baseline for output in outputs], dtype=torch.float32)
    return TrajectoryBatch(tuple(keys), prompts, responses, columns, _objects(outputs, samples))


def _check(key: TrajectoryKey, output: AgentLoopOutput, limits: tuple[int, int]) -> None:
    if not output.prompt_ids or not output.response_ids:
        raise RolloutError(
            f"trajectory {key} has {len(output.prompt_ids)} prompt and {len(output.response_ids)} response tokens; "
            "an agent loop must return at least one of each"
        )
    sides = (("prompt", output.prompt_ids, limits[0]), ("response", output.response_ids, limits[1]))
    for side, tokens, limit in sides:
        if len(tokens) > limit:
            raise RolloutError(
                f"trajectory {key} has {len(tokens)} {side} tokens, data.max_{side}_length is {limit}; raise it, or "
                "let the agent loop cut"
            )
    for name in ("response_mask", "response_logprobs"):
        values = getattr(output, name)
        if values is not None and len(values) != len(output.response_ids):
            raise RolloutError(
                f"trajectory {key}: {name} has {len(values)} values for {len(output.response_ids)} response tokens"
            )


def _pack(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=dtype)


def _objects(outputs: Sequence[AgentLoopOutput], samples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    rows = [{**sample, **output.extra_fields} for sample, output in zip(samples, outputs, strict=True)]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: object_array([row.get(name) for row in rows]) for name in names}
