"""Trainers that recipes build in their own ways: starts to the letter of verl, rewards of the driver or of a model."""

import json

import numpy as np
import pytest
import ray
import torch
from transformers import AutoModelForTokenClassification

from compat.protocol import DataProto
from compat.single_controller.actors import RayClassWithInitArgs, create_colocated_worker_cls
from compat.single_controller.ray_worker_group import RayWorkerGroup
from compat.single_controller.roles import Role
from legacy.groups import POOL
from legacy.main_ppo import TaskRunner
from legacy.ray_trainer import RayPPOTrainer
from legacy.reward_model_worker import RewardModelWorker
from runtime.config.composing import CONFIG_DIR, compose_config
from runtime.data.chat import load_tokenizer
from runtime.fs import local_model

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]

SETTINGS = ["trainer.logger=[jsonl]", "trainer.resume_mode=disable", "trainer.total_training_steps=1"]


def recipe(trainer_class, folder, overrides, more_roles=(), **arguments):
    config = compose_config("tiny", CONFIG_DIR, [*SETTINGS, f"trainer.default_local_dir={folder}", *overrides])
    runner = TaskRunner()
    runner.add_actor_rollout_worker(config)
    runner.add_critic_worker(config)
    runner.role_worker_mapping |= more_roles
    runner.mapping |= dict.fromkeys(more_roles, POOL)
    return trainer_class(
        config=config,
        tokenizer=load_tokenizer(config.actor_rollout_ref.model),
        role_worker_mapping=runner.role_worker_mapping,
        resource_pool_manager=runner.init_resource_pool_mgr(config),
        ray_worker_group_cls=RayWorkerGroup,
        **arguments,
    )


def by_length(data: DataProto, return_dict: bool = False):
    """1 for a response of an even number of tokens, on its last one; and a text that no data set has."""
    scores = torch.zeros_like(data["responses"], dtype=torch.float32)
    lengths = data["attention_mask"][:, -scores.shape[1] :].sum(1)
    scores[torch.arange(len(scores)), lengths - 1] = (lengths % 2 == 0).float()
    infos = {"acc": scores.sum(1).tolist(), "data_source": ["by length"] * len(scores), "short": [1]}
    return {"reward_tensor": scores, "reward_extra_info": infos} if return_dict else scores


class OwnStart(RayPPOTrainer):
    """As SPIN, SPPO and PRIME were written: neither our constructor nor our start runs."""

    def __init__(self, config, tokenizer, role_worker_mapping, resource_pool_manager, ray_worker_group_cls, reward_fn):
        self.tokenizer, self.config, self.reward_fn = tokenizer, config, reward_fn
        self.role_worker_mapping, self.resource_pool_manager = role_worker_mapping, resource_pool_manager
        self.ray_worker_group_cls, self.use_critic, self.use_reference_policy = ray_worker_group_cls, False, False
        self._validate_config()
        self._create_dataloader(None, None, None, None)

    def init_workers(self):
        self.resource_pool_manager.create_resource_pool()
        pool = self.resource_pool_manager.get_resource_pool(Role.ActorRollout)
        worker = RayClassWithInitArgs(
            cls=self.role_worker_mapping[Role.ActorRollout], config=self.config.actor_rollout_ref, role="actor_rollout"
        )
        classes = create_colocated_worker_cls(class_dict={"actor_rollout": worker})
        together = self.ray_worker_group_cls(resource_pool=pool, ray_cls_with_init=classes)
        self.actor_rollout_wg = together.spawn(prefix_set=["actor_rollout"])["actor_rollout"]
        self.actor_rollout_wg.init_model()


def test_a_recipe_that_starts_everything_itself_and_scores_in_the_driver(tmp_path):
    overrides = [
        "algorithm.adv_estimator=remax",  # whose greedy rows are scored before the others
        "algorithm.filter_groups.enable=true",  # which looks at scores before the stage `reward`
        "algorithm.filter_groups.metric=seq_reward",
        "algorithm.filter_groups.max_num_gen_batches=0",
        "reward.custom_reward_function.path=nowhere.py",  # of the driver's function alone; nobody may load it
        f"trainer.rollout_data_dir={tmp_path}/played",
        f"trainer.validation_data_dir={tmp_path}/validated",
        "trainer.val_before_train=true",
    ]
    trainer = recipe(OwnStart, tmp_path / "run", overrides, reward_fn=by_length)
    assert trainer.config.reward.custom_reward_function.path == "nowhere.py"
    trainer.init_workers()
    try:
        before = trainer.actor_rollout_wg.fingerprint()
        trainer.fit()
        assert trainer.actor_rollout_wg.fingerprint() != before
    finally:
        trainer.close()
    validation, step = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert {row["data_source"] for row in lines(tmp_path / "validated" / "0.jsonl")} == {"by length"}
    assert 0 <= validation["val-core/by length/acc/mean@1"] <= 1
    played = lines(tmp_path / "played" / "1.jsonl")
    assert {row["score"] for row in played} == {0.0, 1.0}
    assert step["critic/score/mean"] == pytest.approx(sum(row["score"] for row in played) / len(played))
    assert all(row["acc"] == row["score"] and "short" not in row for row in played)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def judge(tmp_path):
    """A classifier of the tiny policy's tokens, with random weights."""
    torch.manual_seed(0)
    model = AutoModelForTokenClassification.from_pretrained(local_model("tiny://model"), num_labels=1)
    model.save_pretrained(tmp_path / "judge")
    return tmp_path / "judge"


def test_a_reward_model_that_is_mapped_to_a_role_scores(tmp_path, judge):
    overrides = [f"+reward_model.model.path={judge}", "trainer.val_before_train=false"]
    roles = {Role.RewardModel: ray.remote(RewardModelWorker)}
    trainer = recipe(RayPPOTrainer, tmp_path / "run", overrides, roles)
    assert trainer.use_rm
    trainer.init_workers()
    try:
        trainer.fit()
    finally:
        trainer.close()
    (step,) = lines(tmp_path / "run" / "metrics.jsonl")
    # Scores of a random linear head: none of them is one of the few values that the rule of the tiny task gives.
    assert 0 < abs(step["critic/score/max"]) < 1
    assert step["critic/score/max"] != step["critic/score/min"]


class OwnLoop(RayPPOTrainer):
    """A loop that plays through the worker group, updates with what it played, and saves after each step."""

    def fit(self):
        self.global_steps = 0
        self._load_checkpoint()
        batches = iter(self.train_dataloader)
        while self.global_steps < self.total_training_steps:
            self.global_steps += 1
            batch = DataProto.from_single_dict(next(batches))
            batch.non_tensor_batch["uid"] = np.array(
                [f"{self.global_steps}-{row}" for row in range(len(batch))], object
            )
            played = self.actor_rollout_wg.generate_sequences(self._get_gen_batch(batch))
            batch = batch.repeat(self.config.actor_rollout_ref.rollout.n, interleave=True).union(played)
            batch = batch.union(self.actor_rollout_wg.compute_log_prob(batch))
            batch.batch["advantages"] = batch["response_mask"] * (batch["responses"] % 3 - 1.0)
            self.actor_rollout_wg.update_actor(batch)
            self._save_checkpoint()


@pytest.mark.evidence
def test_a_loop_of_a_recipes_own_goes_on_bit_by_bit(tmp_path):
    """Nothing of the loop says its step to the groups: seeds follow the updates, which are saved with the model."""
    ends = {}
    for folder, steps in (("whole", (3,)), ("resumed", (1, 3))):
        for last in steps:
            overrides = ["trainer.save_freq=1", f"trainer.total_training_steps={last}", "trainer.resume_mode=auto"]
            overrides += ["actor_rollout_ref.actor.shuffle=true", "actor_rollout_ref.actor.optim.lr=0.01"]
            trainer = recipe(OwnLoop, tmp_path / folder, overrides)
            trainer.init_workers()
            try:
                trainer.fit()
                ends[folder] = trainer.workers.digests("actor")
            finally:
                trainer.close()
    assert ends["whole"] == ends["resumed"]
