"""What recipes import from ``verl.trainer.main_ppo`` for entry points of their own: ``TaskRunner``, ``run_ppo``."""

from __future__ import annotations

import os
import socket
from typing import Any

import ray
from omegaconf import DictConfig

from compat.data.loading import create_rl_dataset, create_rl_sampler
from compat.single_controller.pools import ResourcePoolManager
from compat.single_controller.ray_worker_group import RayWorkerGroup
from compat.single_controller.roles import Role
from legacy.groups import POOL
from legacy.model_workers import ActorRolloutRefWorker, CriticWorker
from legacy.ray_trainer import RayPPOTrainer
from runtime.cluster import start_ray
from runtime.config import settle_config, uses_critic, uses_reference
from runtime.data import collate_fn
from runtime.data.chat import load_tokenizer
from runtime.workers.group import get


class TaskRunner:
    """Builds a ``RayPPOTrainer`` and trains, inside one Ray actor (verl's ``TaskRunner``).

    Subclass it and override any step; ``run`` calls them in this order.
    """

    def __init__(self) -> None:
        self.role_worker_mapping: dict[Any, Any] = {}
        self.mapping: dict[Any, str] = {}

    def add_actor_rollout_worker(self, config: DictConfig) -> tuple[type, type[RayWorkerGroup]]:
        """Map the policy's role to a worker class; that class and the class of its group."""
        role = Role.ActorRolloutRef if uses_reference(config) else Role.ActorRollout
        self.role_worker_mapping[role] = ray.remote(ActorRolloutRefWorker)
        self.mapping[role] = POOL
        return ActorRolloutRefWorker, RayWorkerGroup

    def add_critic_worker(self, config: DictConfig) -> None:
        """Map the critic's role to a worker class, where there is a critic."""
        if uses_critic(config):
            self.role_worker_mapping[Role.Critic] = ray.remote(CriticWorker)
            self.mapping[Role.Critic] = POOL

    def add_reward_model_worker(self, config: DictConfig) -> None:
        """Reward models have no worker here: a config that enables one is refused where it is read."""

    add_reward_model_resource_pool = add_reward_model_worker
    add_teacher_model_resource_pool = add_reward_model_worker

    def add_ref_policy_worker(self, config: DictConfig, ref_policy_cls: type) -> None:
        """The policy's workers hold the reference too, so there is nothing to map."""

    def init_resource_pool_mgr(self, config: DictConfig) -> ResourcePoolManager:
        """One pool of all ranks."""
        spec = {POOL: [config.trainer.n_gpus_per_node] * config.trainer.nnodes}
        return ResourcePoolManager(resource_pool_spec=spec, mapping=self.mapping)

    def run(self, config: DictConfig) -> None:
        """Build everything and train."""
        print(f"TaskRunner on {socket.gethostname()}, process {os.getpid()}")
        config = settle_config(config, use_v1=False)
        worker_class, group_class = self.add_actor_rollout_worker(config)
        self.add_critic_worker(config)
        self.add_reward_model_worker(config)
        self.add_ref_policy_worker(config, worker_class)
        tokenizer = load_tokenizer(config.actor_rollout_ref.model)
        data = config.data
        train_dataset = create_rl_dataset(
            data.train_files, data, tokenizer, None, is_train=True, max_samples=data.train_max_samples
        )
        val_dataset = None
        if data.val_files:
            val_dataset = create_rl_dataset(
                data.val_files, data, tokenizer, None, is_train=False, max_samples=data.val_max_samples
            )
        trainer = RayPPOTrainer(
            config=config,
            tokenizer=tokenizer,
            role_worker_mapping=self.role_worker_mapping,
            resource_pool_manager=self.init_resource_pool_mgr(config),
            ray_worker_group_cls=group_class,
            train_dataset=train_dataset,
            val_dataset=val_dataset,
            collate_fn=collate_fn,
            train_sampler=create_rl_sampler(data, train_dataset),
        )
        trainer.init_workers()
        try:
            trainer.fit()
        finally:
            trainer.close()


BaseTaskRunner = TaskRunner
"""verl 0.9's name of what its ``TaskRunner`` was before."""


def run_ppo(config: DictConfig, task_runner_class: Any = None) -> None:
    """Start or join Ray and run ``task_runner_class().run(config)`` in an actor (verl's ``run_ppo``).

    task_runner_class: a class, plain or ``ray.remote``; ``TaskRunner`` by default. Its typed error arrives as itself.
    """
    start_ray(config)
    runner_class = task_runner_class or TaskRunner
    if not hasattr(runner_class, "remote"):
        runner_class = ray.remote(num_cpus=1)(runner_class)
    get(runner_class.remote().run.remote(config), "TaskRunner")
