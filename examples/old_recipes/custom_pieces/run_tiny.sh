#!/usr/bin/env bash
# The launch script of the recipe, with its sizes cut down to a tiny model on a CPU.
set -xeuo pipefail

cd "$(dirname "$0")"

python3 main_custom.py \
    data.train_files=tiny://task \
    data.val_files=tiny://task \
    data.train_batch_size=8 \
    data.max_prompt_length=32 \
    data.max_response_length=16 \
    data.dataloader_num_workers=0 \
    actor_rollout_ref.model.path=tiny://model \
    actor_rollout_ref.actor.optim.lr=3e-3 \
    actor_rollout_ref.actor.ppo_mini_batch_size=4 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.fsdp_config.dtype=float32 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.rollout.name=hf \
    actor_rollout_ref.rollout.dtype=float32 \
    actor_rollout_ref.rollout.n=4 \
    actor_rollout_ref.rollout.agent.num_workers=1 \
    trainer.logger='["console"]' \
    trainer.experiment_name=tiny \
    trainer.n_gpus_per_node=1 \
    trainer.nnodes=1 \
    trainer.val_before_train=False \
    trainer.test_freq=2 \
    trainer.save_freq=-1 \
    trainer.total_epochs=1 \
    trainer.total_training_steps=2 \
    trainer.default_local_dir="${CKPTS_DIR:-/tmp/custom_pieces}" "$@"
