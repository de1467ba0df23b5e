"""The replay buffer picks whole prompt groups, in canonical order, and names what it waited for."""

import uuid

import pytest
import torch
from omegaconf import OmegaConf

from runtime import containers
from runtime.errors import PromptTooLongError, RolloutError
from v1 import data_plane
from v1.replay_buffer import ReplayBuffer

pytestmark = pytest.mark.ray


@pytest.fixture
def buffer(cluster) -> ReplayBuffer:  # noqa: ARG001
    config = OmegaConf.create({"runtime": {"rollout_timeout_s": 0.5}})
    return ReplayBuffer(f"test-{uuid.uuid4()}", config)


def put(buffer: ReplayBuffer, *keys: str, status: str = "success", **more: str) -> None:
    for key in keys:
        data_plane.put_tag(key, buffer.partition_id, {"status": status, "seq_len": 7, **more})


def test_keys_are_sorted_by_prompt_session_and_output_whatever_their_arrival(buffer):
    put(buffer, "b_10_0", "a_1_0", "b_2_1", "a_0_0", "b_2_0", "other_0_0")
    put(buffer, "a", "b", "other", status="finished")
    batch = buffer.sample(["b", "a"])
    assert batch.keys == ["b_2_0", "b_2_1", "b_10_0", "a_0_0", "a_1_0"]
    assert [tag["seq_len"] for tag in batch.tags] == [7] * 5


def test_prompts_that_never_finish_are_named_at_the_deadline(buffer):
    """FACTS case 14."""
    put(buffer, "a_0_0")
    put(buffer, "a", status="finished")
    with pytest.raises(RolloutError, match=r"1 of 2 prompts have not finished after 0\.5 s: uid stuck"):
        buffer.sample(["a", "stuck"])


def test_a_failed_prompt_raises_its_own_error_with_the_uid(buffer):
    put(buffer, "a", status="failure", error="row 3 is too long", error_type="PromptTooLongError")
    with pytest.raises(PromptTooLongError, match=r"row 3 is too long \(uid a\)"):
        buffer.sample(["a", "b"])


def test_an_error_of_a_producer_ends_the_wait(buffer):
    def dead() -> None:
        raise RolloutError("the worker died")

    with pytest.raises(RolloutError, match="the worker died"):
        buffer.sample(["a"], dead)


def test_clear_removes_rows_and_the_prompts_own_keys(buffer):
    put(buffer, "a_0_0", "b_0_0")
    put(buffer, "a", "b", status="finished")
    buffer.clear(buffer.sample(["a"]))
    assert sorted(data_plane.list_tags(buffer.partition_id)) == ["b", "b_0_0"]


def test_clear_removes_each_row_of_a_drawn_batch_once_drawn_or_not(buffer):
    put(buffer, "a_0_0", "a_1_0", "a_2_0", "b_0_0")
    put(buffer, "a", "b", status="finished")
    drawn = containers.select_rows(buffer.sample(["a"]), torch.tensor([2, 0, 2]))
    buffer.clear(drawn)
    assert sorted(data_plane.list_tags(buffer.partition_id)) == ["b", "b_0_0"]
