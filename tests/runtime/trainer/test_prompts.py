"""From the loader's batches to training steps."""

import pytest
from datasets import Dataset
from torch.utils.data import DataLoader

from runtime.config import load_config
from runtime.errors import DataError
from runtime.fields import STAGE_NAMES
from runtime.trainer.base import with_schedule_length
from runtime.trainer.prompts import PromptLoaders, PromptSource
from runtime.trainer.stages import configured_stages, updates_actor, written_fields


def source(tmp_path, rows: int, *overrides: str) -> PromptSource:
    path = tmp_path / "rows.parquet"
    row = {
        "data_source": "verlift/toy_letters",
        "prompt": [{"role": "user", "content": "Write a to r."}],
        "reward_model": {"style": "rule", "ground_truth": "abc"},
        "extra_info": {"index": 0},
    }
    Dataset.from_list([row] * rows).to_parquet(path)
    base = [f"data.train_files={path}", "data.shuffle=false", "data.train_batch_size=4"]
    return PromptSource(load_config("tiny", [*base, *overrides]).config)


def rows_of(prompts: PromptSource) -> list[list[int]]:
    return [[submission.identity.row for submission in batch] for batch in prompts.batches()]


def test_small_loader_batches_are_put_together_and_an_epochs_rest_opens_the_next(tmp_path):
    prompts = source(tmp_path, 6, "data.gen_batch_size=2", "trainer.total_training_steps=3")
    assert rows_of(prompts) == [[0, 1, 2, 3], [4, 5, 0, 1], [2, 3, 4, 5]]


def test_a_row_that_comes_twice_in_a_step_is_another_submission(tmp_path):
    prompts = source(tmp_path, 2, "data.gen_batch_size=2", "trainer.total_training_steps=1")
    (batch,) = prompts.batches()
    assert [(s.identity.row, s.identity.occurrence) for s in batch] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert len({submission.uid for submission in batch}) == 4
    assert [submission.position for submission in batch] == [0, 1, 2, 3]


def test_training_goes_on_with_the_next_epoch(tmp_path):
    prompts = source(tmp_path, 4, "trainer.total_training_steps=3")
    batches = list(prompts.batches())
    assert len(batches) == 3
    assert len({submission.uid for batch in batches for submission in batch}) == 12
    assert prompts.progress() == {"training/epoch": 2.0}


def test_steps_follow_from_epochs_when_they_are_not_given(tmp_path):
    assert source(tmp_path, 8, "trainer.total_training_steps=null", "trainer.total_epochs=3").total_steps == 6


def test_a_submission_names_its_file_and_row(tmp_path):
    (batch,) = source(tmp_path, 4, "trainer.total_training_steps=1").batches()
    assert batch[2].where.endswith("rows.parquet row 2")


def test_schedules_learn_the_length_of_the_run_unless_it_is_given():
    config = load_config("tiny", ["critic.optim.total_training_steps=7"]).config
    filled = with_schedule_length(config, 30)
    assert filled.actor_rollout_ref.actor.optim.total_training_steps == 30
    assert filled.critic.optim.total_training_steps == 7


def test_stages_follow_the_config():
    plain = load_config("tiny", ["trainer.balance_batch=false"]).config
    assert configured_stages(plain) == ("rollout", "reward", "old_log_prob", "advantage", "update_actor")
    switches = ["algorithm.adv_estimator=gae", "actor_rollout_ref.actor.use_kl_loss=true", "algorithm.use_pf_ppo=true"]
    assert configured_stages(load_config("tiny", switches).config) == STAGE_NAMES


def test_log_probs_of_the_rollout_are_written_only_when_configured():
    without = load_config("tiny", ["actor_rollout_ref.rollout.calculate_log_probs=false"]).config
    assert "rollout_log_probs" not in written_fields("rollout", without)
    assert "rollout_log_probs" in written_fields("rollout", load_config("tiny").config)


def test_the_actor_waits_for_the_critic_as_in_verl():
    config = load_config("tiny", ["trainer.critic_warmup=3"]).config
    assert [updates_actor(config, step) for step in (1, 2, 3, 4)] == [False, False, True, True]


def loaders_of(rows, **arguments):
    return PromptLoaders(None, DataLoader(rows, batch_size=2, **arguments), lambda: None)


def test_a_loader_without_a_place_is_told_before_training():
    config = load_config("tiny", ["trainer.total_training_steps=1"]).config
    prompts = PromptSource(config, loaders_of([{"row_number": 0}, {"row_number": 1}]))
    with pytest.raises(DataError, match=r"DataLoader, which has no state_dict.*StatefulDataLoader"):
        prompts.check_resumable()


def test_rows_without_their_number_are_named():
    config = load_config("tiny", ["trainer.total_training_steps=1"]).config
    prompts = PromptSource(config, loaders_of([{"uid": "a"}, {"uid": "b"}]))
    with pytest.raises(DataError, match=r"no 'row_number', only \['uid'\]"):
        next(prompts.batches())
