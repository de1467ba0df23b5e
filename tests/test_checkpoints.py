"""A run that goes on from a checkpoint is, bit by bit, the run that was never interrupted."""

import pytest

from runtime.config import load_config
from runtime.errors import CheckpointError
from verlift.trainers import build_trainer

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]


def config_of(folder, use_v1, *overrides):
    """A critic, an adaptive KL controller and a shuffled data set of one step an epoch: all that a run remembers."""
    return load_config(
        "tiny",
        [
            f"trainer.use_v1={use_v1}",
            f"trainer.default_local_dir={folder}",
            "trainer.logger=[jsonl]",
            "algorithm.adv_estimator=gae",
            "algorithm.use_kl_in_reward=true",
            "algorithm.kl_ctrl.type=adaptive",
            "data.shuffle=true",
            *overrides,
        ],
    ).config


def weights_after(config):
    trainer = build_trainer(config)
    try:
        trainer.fit()
        return trainer.workers.digests("actor", "critic"), trainer.kl_controller.value
    finally:
        trainer.close()


@pytest.mark.parametrize("use_v1", [False, True])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, use_v1):
    whole = weights_after(config_of(tmp_path / "whole", use_v1, "trainer.total_training_steps=3"))
    parts = tmp_path / "parts"
    weights_after(config_of(parts, use_v1, "trainer.total_training_steps=2", "trainer.save_freq=1", *_ONE_SCHEDULE))
    assert (parts / "latest_checkpointed_iteration.txt").read_text() == "2"
    resumed = weights_after(config_of(parts, use_v1, "trainer.total_training_steps=3"))
    assert resumed == whole


def test_a_folder_that_holds_no_checkpoint_is_named(tmp_path):
    config = config_of(tmp_path, False, "trainer.resume_mode=resume_path", f"trainer.resume_from_path={tmp_path}/none")
    trainer = build_trainer(config)
    try:
        with pytest.raises(CheckpointError, match="none"):
            trainer.fit()
    finally:
        trainer.close()


_ONE_SCHEDULE = ("actor_rollout_ref.actor.optim.total_training_steps=3", "critic.optim.total_training_steps=3")
"""The schedule of the whole run, which the first part would otherwise make shorter."""
