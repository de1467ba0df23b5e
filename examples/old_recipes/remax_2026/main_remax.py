"""Entry point of a recipe for verl 0.9: own TaskRunner on Ray, own worker class, own init_workers and loop."""

import os
import socket

import hydra
import ray
from omegaconf import OmegaConf
from remax_ray_trainer import RemaxTrainer
from verl.single_controller.ray import RayWorkerGroup
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.trainer.ppo.ray_trainer import ResourcePoolManager
from verl.trainer.ppo.utils import Role, need_reference_policy
from verl.utils.device import auto_set_device
from verl.utils.fs import copy_to_local
from weight_norm_worker import CountingWorker


@ray.remote(num_cpus=1)
class RemaxTaskRunner:
    def run(self, config):
        print(f"TaskRunner hostname: {socket.gethostname()}, PID: {os.getpid()}")
        OmegaConf.resolve(config)
        role = Role.ActorRolloutRef if need_reference_policy(config) else Role.ActorRollout
        role_worker_mapping = {role: ray.remote(CountingWorker)}
        mapping = {role: "global_pool"}
        resource_pool_manager = ResourcePoolManager(
            resource_pool_spec={"global_pool": [config.trainer.n_gpus_per_node] * config.trainer.nnodes},
            mapping=mapping,
        )

        from verl.utils import hf_processor, hf_tokenizer

        local_path = copy_to_local(config.actor_rollout_ref.model.path)
        trainer = RemaxTrainer(
            config=config,
            tokenizer=hf_tokenizer(local_path),
            processor=hf_processor(local_path),
            role_worker_mapping=role_worker_mapping,
            resource_pool_manager=resource_pool_manager,
            ray_worker_group_cls=RayWorkerGroup,
        )
        trainer.init_workers()
        trainer.fit()


@hydra.main(config_path="config", config_name="remax_trainer", version_base=None)
def main(config):
    auto_set_device(config)
    if not ray.is_initialized():
        default_runtime_env = get_ppo_ray_runtime_env()
        ray_init_kwargs = config.ray_kwargs.get("ray_init", {})
        runtime_env = OmegaConf.merge(default_runtime_env, ray_init_kwargs.get("runtime_env", {}))
        ray_init_kwargs = OmegaConf.create({**ray_init_kwargs, "runtime_env": runtime_env})
        ray.init(**OmegaConf.to_container(ray_init_kwargs, resolve=True))
    ray.get(RemaxTaskRunner.remote().run.remote(config))


if __name__ == "__main__":
    main()
