"""The worked example of seed 4.8 on both trainers: P=2 prompts, n=3 samples, every number of the text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from datasets import Dataset

from runtime.config import load_config
from runtime.identity import TrajectoryKey
from runtime.trainer.base import Trainer
from verlift.trainers import build_trainer

pytestmark = pytest.mark.ray

PROMPT_LENGTHS = [4, 4, 4, 6, 6, 6]
RESPONSE_LENGTHS = [3, 5, 4, 2, 4, 6]


@pytest.fixture
def data_file(tmp_path) -> str:
    """Two rows whose sessions are recorded, with the lengths of the text; rewards differ within each prompt."""
    rows = []
    for prompt in range(2):
        sessions = [
            {
                "prompt_ids": list(range(10, 10 + PROMPT_LENGTHS[row])),
                "response_ids": list(range(40 + row, 40 + row + RESPONSE_LENGTHS[row])),
                "reward_score": float(row % 3),
            }
            for row in range(3 * prompt, 3 * prompt + 3)
        ]
        rows.append(
            {
                "data_source": "recorded",
                "prompt": [{"role": "user", "content": f"prompt {prompt}"}],
                "reward_model": {"style": "rule", "ground_truth": ""},
                "agent_name": "replay_agent",
                "extra_info": {"index": prompt, "sessions": sessions},
            }
        )
    path = tmp_path / "recorded.parquet"
    Dataset.from_list(rows).to_parquet(path)
    return str(path)


def overrides(data_file: str, use_v1: bool, directory: str) -> list[str]:
    return [
        f"trainer.use_v1={use_v1}",
        f"data.train_files={data_file}",
        "data.train_batch_size=2",
        "data.shuffle=false",
        "data.max_prompt_length=6",
        "data.max_response_length=6",
        "actor_rollout_ref.rollout.n=3",
        "actor_rollout_ref.rollout.calculate_log_probs=false",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3",
        "actor_rollout_ref.actor.ppo_epochs=2",
        "trainer.n_gpus_per_node=2",
        "trainer.total_training_steps=1",
        "trainer.balance_batch=false",
        "trainer.logger=[jsonl]",
        f"trainer.default_local_dir={directory}",
    ]


def play(trainer: Trainer, stages: Sequence[str]):
    """Run the stages of one step and keep what each returns."""
    trainer.workers.policy_weights.bring_newest()
    (prompts,) = trainer.prompts.batches()
    batch, series = prompts, {}
    for stage in stages:
        batch, series[stage] = getattr(trainer, stage)(batch)
    return prompts, batch, series


@pytest.mark.parametrize("use_v1", [False, True], ids=["legacy", "v1"])
def test_every_number_of_the_example(cluster, data_file, tmp_path, use_v1):  # noqa: ARG001
    config = load_config("tiny", overrides(data_file, use_v1, str(tmp_path / "run"))).config
    trainer = build_trainer(config)
    try:
        prompts, batch, series = play(trainer, trainer.stage_names)
        uids = [prompt.uid for prompt in prompts]
        assert trainer.keys_of(batch) == [TrajectoryKey(uid, session, 0) for uid in uids for session in range(3)]
        check_columns(read(batch, use_v1))
        check_layout(batch, use_v1)
        check_mini_batches(trainer, series["update_actor"])
    finally:
        trainer.close()


def read(batch, use_v1: bool):
    fields = ["prompts", "responses", "input_ids", "response_mask", "rm_scores", "advantages", "returns"]
    if use_v1:
        from v1 import data_plane

        return data_plane.read(batch, fields)
    from compat.rows import read_batch

    return read_batch(batch, fields)


def check_columns(rows) -> None:
    assert rows.prompts.lengths.tolist() == PROMPT_LENGTHS
    assert rows.responses.lengths.tolist() == RESPONSE_LENGTHS
    assert rows.sequences.lengths.tolist() == [7, 9, 8, 8, 10, 12]
    assert rows.responses.offsets.tolist() == [0, 3, 8, 12, 14, 18, 24]
    assert rows["responses"].shape == (24,)
    outcomes = [float(values[-1]) for values in rows.responses.split(rows["rm_scores"])]
    assert outcomes == [0.0, 1.0, 2.0] * 2
    for row, values in enumerate(rows.responses.split(rows["advantages"])):
        expected = (row % 3 - 1.0) / (1.0 + 1e-6)
        assert torch.allclose(values, torch.full_like(values, expected), atol=1e-6)


def check_layout(batch, use_v1: bool) -> None:
    """Legacy holds every response column padded to [6, 6]; V1 holds it jagged, 24 values on those offsets."""
    if not use_v1:
        for name in ("responses", "response_mask", "rm_scores", "old_log_probs", "advantages", "returns"):
            assert batch.batch[name].shape == (6, 6), name
        assert batch.batch["input_ids"].shape == (6, 12)
        return
    from v1 import data_plane

    assert not any(isinstance(value, torch.Tensor) for value in (*vars(batch).values(), *batch.extra_info.values()))
    assert [tag["seq_len"] for tag in batch.tags] == [7, 9, 8, 8, 10, 12]
    shard = data_plane.resolve(batch)
    columns = data_plane.connect().get_data(shard.meta.select_fields(["responses", "advantages"]))
    assert columns["responses"].offsets().tolist() == [0, 3, 8, 12, 14, 18, 24]
    assert columns["advantages"].values().shape == (24,)


def check_mini_batches(trainer: Trainer, series) -> None:
    """A global mini-batch of 2 * 3 rows, 3 of them on each of two ranks, gone over twice."""
    assert trainer.mini_batch_rows("actor") == 6
    assert [len(piece) for piece in trainer.rank_order("actor", 6).chunk(2)] == [3, 3]
    assert len(series["actor/pg_loss"]) == 2
