"""Synthetic runs: the records that a trainer's stages would hand to a hook, made from a seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from parity_tests.capture import Capture, CaptureHook, machine_fingerprint, package_versions, write_manifest
from parity_tests.storage import WEIGHTS
from runtime.digests import tensor_digest
from runtime.identity import PromptIdentity, TrajectoryKey
from runtime.trainer.hooks import INITIAL_STAGE, StageRecord
from runtime.trajectories import TrajectoryBatch
from shared_algos.segments import Segments

PROMPTS, SESSIONS, STEPS = 4, 3, 2

Records = dict[tuple[int, str], StageRecord]


def config_of(use_v1: bool, estimator: str = "grpo") -> dict[str, Any]:
    return {
        "trainer": {
            "use_v1": use_v1,
            "total_training_steps": STEPS,
            "default_local_dir": f"out/{use_v1}",
            "balance_batch": False,
            "critic_warmup": 0,
        },
        "algorithm": {"adv_estimator": estimator, "use_kl_in_reward": False, "use_pf_ppo": False},
        "actor_rollout_ref": {"actor": {"use_kl_loss": False, "optim": {"lr": 1e-6}}},
        "critic": {"enable": None},
    }


def synthetic_records(seed: int = 0, seed_of_uids: int = 0) -> Records:
    """Every record of a GRPO run of ``STEPS`` steps, by (step, stage)."""
    draw = torch.Generator().manual_seed(seed)
    records = {(0, INITIAL_STAGE): StageRecord(0, INITIAL_STAGE, digests=_weights(draw))}
    for step in range(1, STEPS + 1):
        for record in _step_records(step, draw, seed_of_uids):
            records[step, record.stage] = record
    return records


def _weights(draw: torch.Generator) -> dict[str, str]:
    return {f"actor.layer.{n}": tensor_digest(torch.randn(3, 2, generator=draw)) for n in range(3)}


def _step_records(step: int, draw: torch.Generator, seed_of_uids: int) -> list[StageRecord]:
    uids = [PromptIdentity(seed_of_uids, "train", step, row).uid for row in range(PROMPTS)]
    keys = tuple(TrajectoryKey(uid, session, 0) for uid in uids for session in range(SESSIONS))
    prompts = Segments.from_lengths(torch.randint(2, 7, (PROMPTS,), generator=draw).repeat_interleave(SESSIONS))
    responses = Segments.from_lengths(torch.randint(2, 9, (len(keys),), generator=draw))
    bare = TrajectoryBatch(keys, prompts, responses, {})

    def tokens(size: int) -> torch.Tensor:
        return torch.randint(5, 99, (size,), generator=draw)

    def floats() -> torch.Tensor:
        return torch.randn(responses.num_tokens, generator=draw)

    mask = (responses.positions != 1).long()
    scores = torch.where(responses.positions == responses.spread(responses.lengths) - 1, floats(), 0.0)
    rollout = {
        "prompts": tokens(prompts.num_tokens),
        "responses": tokens(responses.num_tokens),
        "response_mask": mask,
        "num_turns": torch.full((len(keys),), 2),
        "rollout_log_probs": floats(),
    }
    sources = np.array(["demo/math"] * len(keys), dtype=object)
    advantage = {"token_level_rewards": scores, "advantages": floats() * mask, "returns": floats() * mask}
    losses = tuple(torch.randn(2, generator=draw).double().tolist())
    return [
        StageRecord(step, "rollout", dataclasses.replace(bare.with_columns(rollout), objects={"data_source": sources})),
        StageRecord(step, "reward", bare.with_columns({"rm_scores": scores, "token_level_scores": scores})),
        StageRecord(step, "old_log_prob", bare.with_columns({"old_log_probs": floats(), "entropy": floats()})),
        StageRecord(step, "advantage", bare.with_columns(advantage), series={"kl": (0.0,)}),
        StageRecord(step, "update_actor", series={"actor/pg_loss": losses}, digests=_weights(draw)),
    ]


def edit_column(records: Records, place: tuple[int, str], **columns: torch.Tensor) -> None:
    """Replace columns of one record."""
    record = records[place]
    assert record.batch is not None
    records[place] = dataclasses.replace(record, batch=record.batch.with_columns(columns))


@pytest.fixture
def records() -> Records:
    return synthetic_records()


@pytest.fixture(scope="session")
def synthetic() -> Callable[..., Records]:
    return synthetic_records


@pytest.fixture
def edit() -> Callable[..., None]:
    return edit_column


@pytest.fixture
def config() -> Callable[..., dict[str, Any]]:
    return config_of


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Capture]:
    """Write records as a capture, through the hook, and open it."""

    def write(name: str, records: Mapping[Any, StageRecord], config: Mapping[str, Any] | None = None) -> Capture:
        return save_capture(tmp_path / name, list(records.values()), config or config_of(name == "v1"))

    return write


@pytest.fixture(scope="module")
def save_module(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Capture]:
    """The same for captures that several tests read; each goes into a folder of its own."""

    def write(name: str, records: Mapping[Any, StageRecord]) -> Capture:
        return save_capture(tmp_path_factory.mktemp("capture") / name, list(records.values()), config_of(name == "v1"))

    return write


def save_capture(directory: Path, records: Sequence[StageRecord], config: Mapping[str, Any]) -> Capture:
    hook = CaptureHook(directory)
    for record in records:
        hook(record)
    write_manifest(directory, config, package_versions(), {"rollout": 0}, machine_fingerprint())
    return Capture.open(directory)


@pytest.fixture(scope="session")
def export_weights() -> Callable[[Capture, Mapping[str, Tensor]], Capture]:
    """Put weights beside a capture, as a run exports them before its manifest is written."""

    def write(capture: Capture, weights: Mapping[str, Tensor]) -> Capture:
        save_file(dict(weights), capture.directory / WEIGHTS)
        made = (capture.manifest[name] for name in ("config", "versions", "seeds", "fingerprint"))
        write_manifest(capture.directory, *made)
        return Capture.open(capture.directory)

    return write


HOSTILE = "<script>alert('&')</script>"
"""Text that a page must show and never run."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Capture, Capture]:
    """Two captures with markup in uid, prompt, response and config, which part at the ``<`` of a response."""
    from transformers import AutoTokenizer

    from runtime.fs import copy_to_local

    model = "tiny://model?seed=0"
    ids = AutoTokenizer.from_pretrained(copy_to_local(model))(HOSTILE, add_special_tokens=False)["input_ids"]
    keys = tuple(TrajectoryKey(HOSTILE, session, 0) for session in range(2))
    lengths = Segments.from_lengths([len(ids)] * 2)
    tokens = torch.tensor(ids * 2)
    bare = TrajectoryBatch(keys, lengths, lengths, {})
    prompts = np.array([HOSTILE, HOSTILE], dtype=object)
    rows = {"raw_prompt": prompts, "row_number": np.array([43, 43]), "data_source": prompts}
    columns = {"prompts": tokens, "responses": tokens, "response_mask": torch.ones_like(tokens)}
    captures = []
    for name in ("legacy", "v1"):
        entropy = torch.full((len(tokens),), 0.25)
        entropy[len(ids) :] += 0.5 * (name == "v1")
        records = [
            StageRecord(1, "rollout", dataclasses.replace(bare.with_columns(columns), objects=rows)),
            StageRecord(1, "old_log_prob", bare.with_columns({"entropy": entropy})),
        ]
        config = config_of(name == "v1")
        config["actor_rollout_ref"]["model"] = {"path": model, "tokenizer_path": None}
        config[HOSTILE] = f"{HOSTILE} of {name}"
        captures.append(save_capture(tmp_path_factory.mktemp(name) / name, records, config))
    return captures[0], captures[1]


@pytest.fixture(scope="session")
def markup() -> str:
    return HOSTILE
