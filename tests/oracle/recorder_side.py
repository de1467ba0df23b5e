"""A step of verl's legacy trainer on real ``DataProto``, recorded as a user would."""

import runpy
from pathlib import Path

import numpy as np
import torch

SHARED = runpy.run_path(str(Path(__file__).with_name("verl_side.py")))


def record(recorder, directory, estimator, prompts, generated, outputs, order, fault=None, saved=None):
    """One step of the loop of ``RayPPOTrainer.fit``, recorded with the file ``recorder``; its batch at the end.

    prompts: arrays of one row a prompt. generated, outputs: tensors of one row a trajectory, in the order of the
    prompts. order: where balancing puts each row. fault: (stage, column, row, token) to change before it is recorded.
    saved: a folder for ``STAGE.pkl``, what ``save_to_disk`` makes of the batch before it is recorded.
    """
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage

    made = runpy.run_path(recorder)["Recorder"](directory)
    sessions = len(generated["responses"]) // len(prompts["uid"])

    def stage(name):
        if fault and fault[0] == name:
            column = batch.batch[fault[1]] = batch.batch[fault[1]].clone()
            column[fault[2:]] += 0.5
        if saved:
            batch.save_to_disk(f"{saved}/{name}.pkl")
        made.stage(1, name, batch, {"actor/entropy": [0.25]} if name == "old_log_prob" else None)

    batch = DataProto.from_dict(tensors={"dummy_tensor": torch.zeros(len(prompts["uid"]), 1)}, non_tensors=prompts)
    batch = batch.repeat(repeat_times=sessions, interleave=True)
    turns = np.full(len(batch), 2, dtype=np.int32)
    batch = batch.union(DataProto.from_dict(tensors=generated, non_tensors={"__num_turns__": turns}))
    stage("rollout")
    batch.reorder(order)
    stage("balance")
    balanced = {name: column[order] for name, column in outputs.items()}
    log_probs = {name: balanced[name] for name in ("old_log_probs", "entropys")}
    batch = batch.union(DataProto.from_dict(tensors=log_probs))
    stage("old_log_prob")
    if estimator == "gae":
        batch = batch.union(DataProto.from_dict(tensors={"values": balanced["values"]}))
        stage("values")
    batch.batch["rm_scores"] = batch.batch["token_level_scores"] = balanced["scores"]
    stage("reward")
    batch.batch["token_level_rewards"] = batch.batch["token_level_scores"]
    batch = compute_advantage(batch, estimator, gamma=1.0, lam=0.95, config={})
    stage("advantage")
    made.close({"trainer": {"use_v1": False}, "algorithm": {"adv_estimator": estimator}})
    return dict(batch.batch.items())


if __name__ == "__main__":
    import sys

    SHARED["serve"].__globals__["record"] = record
    SHARED["serve"](sys.argv[1])
