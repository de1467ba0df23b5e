"""Entry point of a recipe for verl 0.6 to 0.8: verl's TaskRunner subclassed, verl's own loop with two seams overridden."""

import hydra
import ray
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.main_ppo import TaskRunner, create_rl_dataset, create_rl_sampler, run_ppo
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.metric import reduce_metrics


class CurriculumTrainer(RayPPOTrainer):
    """Keeps count of what its updates report, and reports the group spread before each of them."""

    def _update_actor(self, batch: DataProto) -> DataProto:
        scores = batch.batch["token_level_scores"].sum(-1)
        output = super()._update_actor(batch)
        output.meta_info["metrics"]["recipe/score_std"] = [float(scores.std())]
        print("recipe saw", {k: round(v, 6) for k, v in reduce_metrics(dict(output.meta_info["metrics"])).items()})
        return output

    def _compute_old_log_prob(self, batch: DataProto):
        old_log_prob, old_log_prob_mfu = super()._compute_old_log_prob(batch)
        assert "entropys" in old_log_prob.batch.keys()
        return old_log_prob, old_log_prob_mfu


class CustomTaskRunner(TaskRunner):
    def run(self, config):
        import pieces  # noqa: F401  (registers the estimator, the loss and the reward manager, in this process)

        OmegaConf.resolve(config)
        actor_rollout_cls, ray_worker_group_cls = self.add_actor_rollout_worker(config)
        self.add_critic_worker(config)
        self.add_reward_model_worker(config)
        self.add_ref_policy_worker(config, actor_rollout_cls)

        from verl.trainer.ppo.utils import need_critic, need_reference_policy
        from verl.utils import hf_processor, hf_tokenizer
        from verl.utils.config import validate_config
        from verl.utils.fs import copy_to_local

        validate_config(
            config=config,
            use_reference_policy=need_reference_policy(config),
            use_critic=need_critic(config),
        )
        local_path = copy_to_local(
            config.actor_rollout_ref.model.path, use_shm=config.actor_rollout_ref.model.get("use_shm", False)
        )
        tokenizer = hf_tokenizer(local_path, trust_remote_code=config.data.get("trust_remote_code", False))
        processor = hf_processor(local_path, trust_remote_code=False, use_fast=True)

        reward_fn = load_reward_manager(
            config, tokenizer, num_examine=0, **config.reward_model.get("reward_kwargs", {})
        )
        val_reward_fn = load_reward_manager(
            config, tokenizer, num_examine=1, **config.reward_model.get("reward_kwargs", {})
        )
        resource_pool_manager = self.init_resource_pool_mgr(config)
        train_dataset = create_rl_dataset(config.data.train_files, config.data, tokenizer, processor, is_train=True)
        val_dataset = create_rl_dataset(config.data.val_files, config.data, tokenizer, processor, is_train=False)
        train_sampler = create_rl_sampler(config.data, train_dataset)

        trainer = CurriculumTrainer(
            config=config,
            tokenizer=tokenizer,
            processor=processor,
            role_worker_mapping=self.role_worker_mapping,
            resource_pool_manager=resource_pool_manager,
            ray_worker_group_cls=ray_worker_group_cls,
            reward_fn=reward_fn,
            val_reward_fn=val_reward_fn,
            train_dataset=train_dataset,
            val_dataset=val_dataset,
            collate_fn=collate_fn,
            train_sampler=train_sampler,
        )
        trainer.init_workers()
        trainer.fit()


@hydra.main(config_path="config", config_name="custom", version_base=None)
def main(config):
    run_ppo(config, task_runner_class=ray.remote(num_cpus=1)(CustomTaskRunner))


if __name__ == "__main__":
    main()
