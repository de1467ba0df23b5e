"""``RayPPOTrainer`` as a recipe makes it, on Ray: its own loop, both eras of worker methods, and the same results."""

import numpy as np
import pytest
import ray
import torch
from omegaconf import OmegaConf

from compat import tensordict_utils as tu
from compat.no_padding import left_right_2_no_padding, no_padding_2_padding
from compat.protocol import DataProto
from legacy.main_ppo import TaskRunner
from legacy.ray_trainer import RayPPOTrainer
from legacy.trainer import LegacyTrainer
from runtime.config import load_config
from runtime.config.composing import CONFIG_DIR, compose_config
from runtime.data.chat import load_tokenizer
from runtime.errors import CheckpointError, ConfigError, VerliftError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]

SETTINGS = [
    "algorithm.adv_estimator=gae",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "trainer.n_gpus_per_node=2",
    "trainer.logger=[jsonl]",
    "trainer.resume_mode=disable",
]


def trainer_of_recipe(folder, trainer_class=RayPPOTrainer, overrides=(), **arguments):
    """Built as verl's TaskRunner builds one, from a config as hydra composes it."""
    config = compose_config("tiny", CONFIG_DIR, [*SETTINGS, f"trainer.default_local_dir={folder}", *overrides])
    runner = TaskRunner()
    runner.add_actor_rollout_worker(config)
    runner.add_critic_worker(config)
    return trainer_class(
        config=config,
        tokenizer=load_tokenizer(config.actor_rollout_ref.model),
        role_worker_mapping=runner.role_worker_mapping,
        resource_pool_manager=runner.init_resource_pool_mgr(config),
        **arguments,
    )


def digests(trainer):
    try:
        trainer.fit()
        return trainer.workers.digests("actor", "critic")
    finally:
        trainer.close()


def test_without_an_override_it_trains_as_the_legacy_trainer_does(tmp_path):
    config = load_config("tiny", ["trainer.use_v1=false", f"trainer.default_local_dir={tmp_path}/a", *SETTINGS]).config
    recipe = trainer_of_recipe(tmp_path / "b")
    recipe.init_workers()
    assert digests(recipe) == digests(LegacyTrainer(config))


def test_both_eras_of_worker_methods_agree(tmp_path):
    trainer = trainer_of_recipe(tmp_path)
    trainer.init_workers()
    try:
        batch = DataProto.from_single_dict(next(iter(trainer.train_dataloader)))
        gen_batch = trainer._get_gen_batch(batch).repeat(2, interleave=True)
        batch = batch.repeat(2, interleave=True).union(trainer.async_rollout_manager.generate_sequences(gen_batch))
        batch = batch[:13]  # which 2 ranks do not divide
        by_rows = trainer.actor_rollout_wg.compute_log_prob(batch)
        values = trainer.critic_wg.compute_values(batch)
        packed = left_right_2_no_padding(batch.select().to_tensordict())
        answer = trainer.actor_rollout_wg.compute_log_prob(packed)
        answered = trainer.critic_wg.infer_batch(packed).get()
        for mine, name in ((by_rows["old_log_probs"], "log_probs"), (by_rows["entropys"], "entropy")):
            assert torch.equal(no_padding_2_padding(tu.get(answer, name), packed), mine)
        assert torch.equal(no_padding_2_padding(tu.get(answered, "values"), packed), values["values"])
        assert tu.get(answer, "metrics")["mfu"] == 0.0
        assert by_rows["old_log_probs"].abs().sum() > 0
    finally:
        trainer.close()


class OldLoop(RayPPOTrainer):
    """What a loop of verl 0.4 does with the worker groups, without their trainer's help."""

    def fit(self):
        batch = DataProto.from_single_dict(next(iter(self.train_dataloader)))
        gen_batch = batch.pop(["input_ids", "attention_mask", "position_ids"], ["raw_prompt_ids"])
        # Up to 0.4 the group itself played n sessions a prompt.
        output = self.actor_rollout_wg.generate_sequences(gen_batch)
        n = self.config.actor_rollout_ref.rollout.n
        batch.non_tensor_batch["uid"] = np.array([f"uid{row}" for row in range(len(batch))], dtype=object)
        batch = batch.repeat(n, interleave=True).union(output)
        batch = batch.union(self.actor_rollout_wg.compute_log_prob(batch))
        batch.batch["advantages"] = torch.ones_like(batch["old_log_probs"])
        batch.batch["ref_log_prob"] = batch["old_log_probs"]
        before = self.actor_rollout_wg.fingerprint()
        greedy = gen_batch.slice(0, None)
        greedy.meta_info = {"do_sample": False}
        first = self.actor_rollout_wg.generate_sequences(greedy)["responses"]
        updated = self.actor_rollout_wg.update_actor(batch[:30])  # 30 rows in mini-batches of 16
        assert len(updated.meta_info["metrics"]["actor/pg_loss"]) == 2
        assert self.actor_rollout_wg.fingerprint() != before
        second = self.actor_rollout_wg.generate_sequences(greedy)["responses"]
        return first, second


def test_a_loop_that_drives_the_groups_itself(tmp_path):
    overrides = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.optim.lr=0.5"]
    trainer = trainer_of_recipe(tmp_path, OldLoop, overrides)
    trainer.init_workers()
    try:
        first, second = trainer.fit()
        assert first.shape == second.shape == (8, 16)
        assert not torch.equal(first, second)  # rollout plays with the weights as they are after the update
    finally:
        trainer.close()


def test_what_is_missing_is_told_before_anything_starts(tmp_path):
    trainer = trainer_of_recipe(tmp_path)
    with pytest.raises(ConfigError, match="init_workers"):
        trainer.fit()
    trainer.role_worker_mapping = {}
    with pytest.raises(ConfigError, match="ActorRollout"):
        trainer.init_workers()
    with pytest.raises(VerliftError, match="lora_rank"):
        trainer_of_recipe(tmp_path, overrides=["+actor_rollout_ref.model.lora_rank=8"])
    assert not [name for name in ray.util.list_named_actors() if "ActorRollout" in name]


def test_a_checkpoint_of_another_model_is_named(tmp_path):
    trainer = trainer_of_recipe(tmp_path)
    trainer.init_workers()
    try:
        with pytest.raises(CheckpointError, match="nowhere"):
            trainer.actor_rollout_wg.load_checkpoint(str(tmp_path / "nowhere"))
        with pytest.raises(CheckpointError, match="hdfs"):
            trainer.actor_rollout_wg.save_checkpoint(str(tmp_path), "hdfs://x")
    finally:
        trainer.close()


def test_the_config_keeps_what_the_recipe_gave(tmp_path):
    trainer = trainer_of_recipe(tmp_path, overrides=["+my_recipe.alpha=0.5", "trainer.use_v1=true"])
    assert trainer.config.my_recipe.alpha == 0.5
    assert trainer.config.trainer.use_v1 is False
    assert trainer.config.actor_rollout_ref.actor.optim.total_training_steps == trainer.total_training_steps == 2
    OmegaConf.update(trainer.config, "trainer.total_training_steps", 3)  # recipes do
