"""Captures of runs that never were: any number of trajectories, of random lengths and values, from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parity_tests.capture import Capture, CaptureHook, machine_fingerprint, package_versions, write_manifest
from runtime.arrays import object_array
from runtime.digests import tensor_digest
from runtime.identity import PromptIdentity, TrajectoryKey
from runtime.trainer.hooks import INITIAL_STAGE, StageRecord
from runtime.trajectories import TrajectoryBatch, outcome_scores
from shared_algos.segments import Segments


@dataclass(frozen=True)
class Size:
    """How large a synthetic run is."""

    rows: int
    """Trajectories a step; a multiple of ``sessions``."""
    longest: int
    """Response lengths are spread evenly over the orders of magnitude from 1 to here; one is as long."""
    sessions: int = 8
    """Trajectories of a prompt."""
    prompt: int = 64
    """Prompts have 1 to this many tokens."""
    steps: int = 1


def synthetic_capture(
    directory: Path, size: Size, use_v1: bool, seed: int = 0, drift: float = 0.0, reverse: bool = False
) -> Capture:
    """Write a GRPO run of ``size`` to ``directory``, which must be new, and open it.

    use_v1: which trainer it pretends to be of. seed: equal seeds give equal values. drift: added to every log-prob.
    reverse: the last row first.
    """
    hook = CaptureHook(directory)
    for record in _records(size, seed, drift):
        if reverse and record.batch is not None:
            record = replace(record, batch=record.batch.select(range(len(record.batch) - 1, -1, -1)))
        hook(record)
    config = {
        "trainer": {
            "use_v1": use_v1,
            "total_training_steps": size.steps,
            "balance_batch": False,
            "critic_warmup": 0,
            "n_gpus_per_node": 1,
            "nnodes": 1,
        },
        "data": {"train_batch_size": size.rows // size.sessions},
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False, "use_pf_ppo": False},
        "actor_rollout_ref": {
            "actor": {"use_kl_loss": False, "ppo_mini_batch_size": size.rows // size.sessions},
            "rollout": {"n": size.sessions},
        },
        "critic": {"enable": None},
    }
    write_manifest(directory, config, package_versions(), {"global": seed}, machine_fingerprint())
    return Capture.open(directory)


def _records(size: Size, seed: int, drift: float) -> Iterator[StageRecord]:
    draw = torch.Generator().manual_seed(seed)
    yield StageRecord(0, INITIAL_STAGE, digests=_digests(draw))
    for step in range(1, size.steps + 1):
        bare = _bare(size, step, draw)
        yield StageRecord(step, "rollout", _with_tokens(bare, draw))
        scores = outcome_scores(torch.rand(len(bare), generator=draw).tolist(), bare.responses)
        yield StageRecord(step, "reward", bare.with_columns({"rm_scores": scores, "token_level_scores": scores}))
        log_probs = drift - _floats(bare, draw)
        yield StageRecord(step, "old_log_prob", bare.with_columns({"old_log_probs": log_probs}))
        advantages = _floats(bare, draw)
        columns = {"token_level_rewards": scores, "advantages": advantages, "returns": advantages}
        yield StageRecord(step, "advantage", bare.with_columns(columns))
        losses = tuple(torch.randn(2, generator=draw).double().tolist())
        yield StageRecord(step, "update_actor", series={"actor/pg_loss": losses}, digests=_digests(draw))


def _bare(size: Size, step: int, draw: torch.Generator) -> TrajectoryBatch:
    uids = [PromptIdentity(0, "train", step, row).uid for row in range(size.rows // size.sessions)]
    keys = tuple(TrajectoryKey(uid, session, 0) for uid in uids for session in range(size.sessions))
    lengths = (size.longest ** torch.rand(len(keys), generator=draw)).long()
    lengths[-1] = size.longest
    prompts = torch.randint(1, size.prompt + 1, (len(uids),), generator=draw).repeat_interleave(size.sessions)
    return TrajectoryBatch(keys, Segments.from_lengths(prompts), Segments.from_lengths(lengths), {})


def _with_tokens(bare: TrajectoryBatch, draw: torch.Generator) -> TrajectoryBatch:
    def tokens(count: int) -> Tensor:
        return torch.randint(5, 50_000, (count,), generator=draw)

    prompts, responses = tokens(bare.prompts.num_tokens), tokens(bare.responses.num_tokens)
    of_prompt = bare.sequences.positions < bare.sequences.spread(bare.prompts.lengths)
    input_ids = torch.empty(bare.sequences.num_tokens, dtype=torch.int64)
    input_ids[of_prompt], input_ids[~of_prompt] = prompts, responses
    columns: dict[str, Tensor] = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": input_ids,
        "position_ids": bare.sequences.positions,
        "response_mask": torch.ones(bare.responses.num_tokens, dtype=torch.int64),
        "num_turns": torch.full((len(bare),), 2),
    }
    rows: list[Any] = [{"index": row, "split": "train"} for row in range(len(bare))]
    objects = {"extra_info": object_array(rows)}
    return TrajectoryBatch(bare.keys, bare.prompts, bare.responses, columns, objects)


def _floats(bare: TrajectoryBatch, draw: torch.Generator) -> Tensor:
    return torch.rand(bare.responses.num_tokens, generator=draw)


def _digests(draw: torch.Generator) -> dict[str, str]:
    return {f"actor.layer.{layer}": tensor_digest(torch.randn(3, generator=draw)) for layer in range(3)}
