"""Bad input ends in one typed error that names file, row or key, on both trainers, and leaves no actor behind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import ray
from datasets import Dataset

from runtime.config import load_config
from runtime.errors import BatchSizeError, DataError, PromptTooLongError, RewardError, RolloutError
from runtime.identity import PromptIdentity
from verlift.trainers import build_trainer

BOTH = pytest.mark.parametrize("use_v1", [False, True], ids=["legacy", "v1"])


def row(content: str = "Write a to r.") -> dict:
    return {
        "data_source": "verlift/toy_letters",
        "prompt": [{"role": "user", "content": content}],
        "reward_model": {"style": "rule", "ground_truth": "abc"},
        "extra_info": {"index": 0},
    }


def write(path: Path, rows: list[dict]) -> str:
    Dataset.from_list(rows).to_parquet(path)
    return str(path)


def train(use_v1: bool, directory: Path, *overrides: str) -> None:
    """One step of two prompts and two samples."""
    base = [
        f"trainer.use_v1={use_v1}",
        f"trainer.default_local_dir={directory}",
        "trainer.logger=[jsonl]",
        "trainer.total_training_steps=1",
        "data.train_batch_size=2",
        "data.shuffle=false",
        "data.max_response_length=4",
        "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    ]
    trainer = build_trainer(load_config("tiny", [*base, *overrides]).config)
    try:
        trainer.fit()
    finally:
        trainer.close()


@pytest.fixture
def no_actor_left(cluster):  # noqa: ARG001
    """Every CPU that the run took is free again."""
    before = ray.available_resources().get("CPU", 0)
    yield
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU", 0) < before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ray.available_resources().get("CPU", 0) == before


@BOTH
def test_a_missing_file_is_named(tmp_path, use_v1):
    with pytest.raises(DataError, match=r"nowhere\.parquet"):
        train(use_v1, tmp_path, f"data.train_files={tmp_path}/nowhere.parquet")


@BOTH
def test_a_file_without_prompts_is_named_with_its_columns(tmp_path, use_v1):
    path = write(tmp_path / "bare.parquet", [{"question": "?", "data_source": "x"}] * 2)
    with pytest.raises(DataError, match=r"bare\.parquet.*'prompt'.*question"):
        train(use_v1, tmp_path, f"data.train_files={path}")


@BOTH
def test_fewer_rows_than_a_batch_are_named_with_both_numbers(tmp_path, use_v1):
    path = write(tmp_path / "one.parquet", [row()])
    with pytest.raises(BatchSizeError, match=r"1 rows .*data\.train_batch_size=2"):
        train(use_v1, tmp_path, f"data.train_files={path}")


@BOTH
def test_a_batch_that_does_not_divide_is_named_with_both_keys(tmp_path, use_v1):
    with pytest.raises(BatchSizeError, match=r"train_batch_size.*ppo_mini_batch_size"):
        train(use_v1, tmp_path, "data.train_batch_size=3")


@pytest.mark.ray
@BOTH
def test_a_prompt_that_is_too_long_is_named_with_file_and_row(tmp_path, use_v1, no_actor_left):  # noqa: ARG001
    path = write(tmp_path / "long.parquet", [row(), row("x" * 99)])
    with pytest.raises(PromptTooLongError, match=r"long\.parquet row 1.*max_prompt_length is 32"):
        train(use_v1, tmp_path, f"data.train_files={path}", "data.truncation=error")


@pytest.mark.ray
@BOTH
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('no such answer')", r"raised KeyError.*no such answer.*good\.parquet row"),
        ("return float('nan')", r"returned nan.*good\.parquet row"),
        ("return 'well done'", r"returned 'well done'.*good\.parquet row"),
    ],
    ids=["raises", "nan", "string"],
)
def test_a_bad_reward_function_is_named_with_the_row(tmp_path, use_v1, body, message, no_actor_left):  # noqa: ARG001
    path = write(tmp_path / "good.parquet", [row(), row()])
    reward = tmp_path / "reward.py"
    reward.write_text(f"def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    {body}\n")
    with pytest.raises(RewardError, match=message):
        train(use_v1, tmp_path, f"data.train_files={path}", f"reward.custom_reward_function.path={reward}")


@BOTH
def test_a_reward_file_that_is_not_there_is_named(tmp_path, use_v1):
    with pytest.raises(RewardError, match=r"gone\.py"):
        train(use_v1, tmp_path, f"reward.custom_reward_function.path={tmp_path}/gone.py")


@pytest.mark.ray
@BOTH
def test_a_session_that_never_ends_is_named_by_its_uid(tmp_path, use_v1, no_actor_left):  # noqa: ARG001
    """FACTS case 14: one prompt whose reward function hangs stopped the whole run for ever."""
    path = write(tmp_path / "stuck.parquet", [row(), {**row(), "data_source": "stuck"}])
    reward = tmp_path / "reward.py"
    reward.write_text(
        "import asyncio\n\n\n"
        "async def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    await asyncio.sleep(600 if data_source == 'stuck' else 0)\n    return 0.5\n"
    )
    stuck = PromptIdentity(42, "train", 1, 1).uid
    with pytest.raises(RolloutError, match=rf"1 of 2 prompts have not finished after 20 s: uid {stuck}"):
        train(
            use_v1,
            tmp_path,
            f"data.train_files={path}",
            f"reward.custom_reward_function.path={reward}",
            "runtime.rollout_timeout_s=20",
        )


@pytest.mark.ray
@BOTH
def test_an_agent_loop_that_is_not_there_is_named_at_once(tmp_path, use_v1, no_actor_left):  # noqa: ARG001
    path = write(
        tmp_path / "loops.parquet", [{**row(), "agent_name": name} for name in ("single_turn_agent", "no_such_loop")]
    )
    with pytest.raises(RolloutError, match=r"no agent loop 'no_such_loop'; there are \[.*'single_turn_agent'"):
        train(use_v1, tmp_path, f"data.train_files={path}", "actor_rollout_ref.rollout.deterministic=true")
