"""What stages write, and when the policy is updated."""

import pytest

from runtime.config import load_config
from runtime.trainer.stages import updates_actor, written_fields

ROLLOUT = ("prompts", "responses", "input_ids", "position_ids", "response_mask", "num_turns")
THERE = {"uid", "submission", "session_id", "reward_model", "data_source", "responses", "rm_scores"}


def config(*overrides: str):
    return load_config("tiny", overrides).config


def test_rollout_writes_the_objects_that_are_there_and_no_other_stage_does():
    columns = (*ROLLOUT, "rollout_log_probs", "rm_scores")
    assert written_fields("rollout", config()) == columns
    assert written_fields("rollout", config(), THERE) == (*columns, "data_source", "reward_model", "uid")
    assert written_fields("reward", config(), THERE) == ("rm_scores", "token_level_scores")
    assert written_fields("initial", config(), THERE) == ()


def test_rollout_without_log_probs():
    fields = written_fields("rollout", config("actor_rollout_ref.rollout.calculate_log_probs=false"))
    assert fields == (*ROLLOUT, "rm_scores")


@pytest.mark.parametrize(("critic_warmup", "first"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_the_first_step_that_updates_the_policy(critic_warmup, first):
    """As both trainers of verl 0.9.1: the policy is updated when ``trainer.critic_warmup <= global_steps``."""
    settings = config(f"trainer.critic_warmup={critic_warmup}")
    assert next(step for step in range(1, 5) if updates_actor(settings, step)) == first
