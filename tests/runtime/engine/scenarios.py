"""Batches, configs and training scenarios that tests run in process and, as a script, on several gloo ranks.

python scenarios.py RANK WORLD_SIZE RENDEZVOUS_FILE MODEL_FOLDER OUTPUT_FILE
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from runtime.engine.engine import Engine
from runtime.engine.losses import ActorLoss, CriticLoss, Loss
from runtime.engine.micro_batches import MicroBatchLimit, RowLimit, TokenLimit
from runtime.engine.spec import EngineSpec, actor_spec, critic_spec
from runtime.identity import TrajectoryKey
from runtime.trajectories import TrajectoryBatch
from shared_algos.segments import Segments

ROOT = Path(__file__).parents[3]
PROMPT_LENGTHS = (4, 9, 2, 7, 3, 12)
RESPONSE_LENGTHS = (3, 8, 5, 1, 11, 6)

LIMITS: dict[str, MicroBatchLimit] = {
    "all": RowLimit(None),
    "1 row": RowLimit(1),
    "2 rows": RowLimit(2),
    "3 rows": RowLimit(3),
    "tokens": TokenLimit(20),
}
LOSSES = {
    "token-mean": ["actor_rollout_ref.actor.loss_agg_mode=token-mean"],
    "norm": ["actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm"],
    "seq-mean": ["actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"],
    "critic": ["actor_rollout_ref.actor.loss_agg_mode=token-mean"],
    "clip_cov": [
        "actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov",
        "actor_rollout_ref.actor.policy_loss.clip_cov_ratio=0.3",
        "actor_rollout_ref.actor.policy_loss.clip_cov_lb=-10.0",
    ],
    "kl_cov": [
        "actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov",
        "actor_rollout_ref.actor.policy_loss.kl_cov_ratio=0.3",
        "actor_rollout_ref.actor.policy_loss.ppo_kl_coef=1.0",
    ],
    "bypass": [
        "algorithm.rollout_correction.bypass_mode=true",
        "algorithm.rollout_correction.loss_type=reinforce",
        "algorithm.rollout_correction.rollout_is=token",
        "algorithm.rollout_correction.rollout_is_batch_normalize=true",
        "algorithm.rollout_correction.rollout_rs=token_k1",
        "algorithm.rollout_correction.rollout_rs_threshold=1.5",
    ],
}


def make_config(model: str, *overrides: str) -> DictConfig:
    """The tiny config on ``model``, with entropy bonus and KL loss on so that every term takes part."""
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return compose(
            "tiny",
            [
                f"actor_rollout_ref.model.path='{model}'",
                "actor_rollout_ref.actor.entropy_coeff=0.01",
                "actor_rollout_ref.actor.use_kl_loss=true",
                "actor_rollout_ref.actor.grad_clip=1000.0",
                "critic.grad_clip=1000.0",
                # Adam divides a gradient by its own size: at the default 1e-8, rounding of a tiny one is a full step.
                "+actor_rollout_ref.actor.optim.override_optimizer_config.eps=0.01",
                "+critic.optim.override_optimizer_config.eps=0.01",
                *overrides,
            ],
        )


def make_batch(
    prompt_lengths: Sequence[int] = PROMPT_LENGTHS,
    response_lengths: Sequence[int] = RESPONSE_LENGTHS,
    seed: int = 0,
    vocab: int = 100,
) -> TrajectoryBatch:
    """Random rows with every column a loss reads; mask 0 in the middle, at an end, and on the whole of row 3."""
    draw = torch.Generator().manual_seed(seed)
    prompts, responses = Segments.from_lengths(prompt_lengths), Segments.from_lengths(response_lengths)
    sequences = Segments.from_lengths(prompts.lengths + responses.lengths)
    mask = torch.ones(responses.num_tokens, dtype=torch.int64)
    mask[5:7] = 0
    mask[-2:] = 0
    if len(response_lengths) > 3:
        mask[responses.rows == 3] = 0

    def column() -> torch.Tensor:
        return torch.randn(responses.num_tokens, generator=draw)

    return TrajectoryBatch(
        keys=tuple(TrajectoryKey(f"uid{row // 2}", row % 2, 0) for row in range(len(prompt_lengths))),
        prompts=prompts,
        responses=responses,
        columns={
            "input_ids": torch.randint(8, vocab, (sequences.num_tokens,), generator=draw),
            "position_ids": sequences.positions,
            "response_mask": mask,
            "old_log_probs": -4.6 + 0.3 * column(),
            "ref_log_prob": -4.6 + 0.3 * column(),
            "advantages": column(),
            "returns": column(),
            "values": column(),
        },
        objects={"data_source": np.array(["toy"] * len(prompt_lengths), dtype=object)},
    )


def make_engine(spec: EngineSpec, rank: int = 0, world_size: int = 1) -> Engine:
    return Engine(spec, torch.device("cpu"), rank, world_size)


def make_loss(name: str, config: DictConfig) -> tuple[EngineSpec, Loss]:
    if name == "critic":
        return critic_spec(config), CriticLoss(config)
    return actor_spec(config), ActorLoss(config)


def gradients(engine: Engine) -> dict[str, torch.Tensor]:
    """The gradients of the only step taken: AdamW's first moment after one step is (1 - beta1) times the gradient."""
    return {
        name: engine.optimizer.state[parameter]["exp_avg"].full_tensor() / 0.1
        for name, parameter in engine.model.named_parameters()
    }


def one_step(model: str, loss_name: str, limit: str, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
    """One optimizer step on six rows split over the ranks: metrics, gradients and new weights (on rank 0)."""
    config = make_config(model, *LOSSES[loss_name])
    spec, loss = make_loss(loss_name, config)
    engine = make_engine(replace(spec, train_limit=LIMITS[limit]), rank, world_size)
    batch = make_batch()
    share = len(batch) // world_size
    metrics = engine.train_mini_batch(batch.select(range(rank * share, (rank + 1) * share)), loss, temperature=0.7)
    return {"metrics": metrics, "gradients": gradients(engine), "weights": engine.full_state_dict()}


def two_rank_scenarios(model: str, rank: int, world_size: int) -> dict[str, Any]:
    results: dict[str, Any] = {
        f"{loss}/{limit}": one_step(model, loss, limit, rank, world_size)
        for loss, limits in {
            "token-mean": ("1 row", "2 rows", "tokens"),
            "norm": ("2 rows",),
            "critic": ("2 rows",),
            "clip_cov": ("2 rows",),
            "kl_cov": ("2 rows",),
            "bypass": ("2 rows",),
        }.items()
        for limit in limits
    }
    results["uneven infer"] = uneven_inference(model, rank, world_size)
    critic = make_engine(critic_spec(make_config(model)), rank, world_size)
    results["initial critic"] = critic.digest()
    figures = {"of both": 1.5} if rank == 0 else {"of the second": 4.0, "of both": 2.0}
    results["figures"] = critic._summed_over_ranks(
        {name: torch.tensor(value).double() for name, value in figures.items()}
    )
    return results


def uneven_inference(model: str, rank: int, world_size: int) -> torch.Tensor:
    """Log-probs of 4 rows on rank 0 and 2 on rank 1, a row at a time: two forwards of rank 1 have no rows."""
    spec = replace(actor_spec(make_config(model)), infer_limit=RowLimit(1))
    rows = [0, 1, 2, 3] if rank == 0 else [4, 5]
    return make_engine(spec, rank, world_size).infer(make_batch().select(rows), 0.7)["log_probs"]


def main() -> None:
    rank, world_size, rendezvous, model, output = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
    torch.save(two_rank_scenarios(model, rank, world_size), output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
