"""The same work done by us and by verl 0.9.1, jagged tensors in and jagged tensors out.

verl's side is what its V1 trainer does: ``to_padded_tensor`` for each column, the function on ``[B, R]``, and
``response_to_nested`` for each result. Only the columns that the function reads are padded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from benchmarks.batch import GROUP, Batch
from compat.jagged import jagged, unjag
from shared_algos.advantages import AdvantageConfig, AdvantageInputs, compute_advantages
from shared_algos.aggregation import Denominators
from shared_algos.policy_losses import PolicyLossConfig, PolicyLossInputs, compute_policy_loss

Work: TypeAlias = Callable[[Batch], tuple[Tensor, ...]]

GAMMA, LAM = 1.0, 0.95


def our_advantages(name: str) -> Work:
    """Advantages and returns, jagged."""

    def work(batch: Batch) -> tuple[Tensor, ...]:
        rewards, segments = unjag(batch.columns["rm_scores"])
        rows = torch.arange(segments.num_rows, device=rewards.device)
        inputs = AdvantageInputs(
            token_level_rewards=rewards,
            response_mask=batch.columns["response_mask"].values(),
            segments=segments,
            groups=batch.groups,
            sessions=rows % GROUP,
            indices=torch.zeros_like(rows),
            values=batch.columns["values"].values(),
        )
        outputs = compute_advantages(name, inputs, AdvantageConfig(GAMMA, LAM))
        return jagged(outputs.advantages, segments), jagged(outputs.returns, segments)

    return work


def verls_advantages(name: str) -> Work:
    """Advantages and returns, jagged."""

    def work(batch: Batch) -> tuple[Tensor, ...]:
        from verl.trainer.config import AlgoConfig
        from verl.trainer.ppo import core_algos
        from verl.workers.utils.padding import response_to_nested

        mask = batch.columns["response_mask"]
        columns = {
            "token_level_rewards": batch.columns["rm_scores"].to_padded_tensor(0.0),
            "response_mask": mask.to_padded_tensor(0),
        }
        if name == "gae":
            values = batch.columns["values"].to_padded_tensor(0.0)
            results = core_algos.compute_gae_advantage_return(**columns, values=values, gamma=GAMMA, lam=LAM)
        else:
            uid = np.array([str(group) for group in batch.groups.tolist()], dtype=object)
            config = AlgoConfig(adv_estimator=name, gamma=GAMMA, lam=LAM)
            results = core_algos.get_adv_estimator_fn(name)(**columns, index=uid, config=config)
        return tuple(response_to_nested(result, mask) for result in results)

    return work


def our_loss(name: str) -> Work:
    """The loss and its gradient by the log-probs, ``[T]``."""

    def work(batch: Batch) -> tuple[Tensor, ...]:
        log_probs, segments = unjag(batch.columns["log_probs"])
        log_probs = log_probs.detach().requires_grad_()
        old, advantages, mask = (batch.columns[of].values() for of in ("old_log_probs", "advantages", "response_mask"))
        denominators = Denominators.count(mask, segments, 1)
        inputs = PolicyLossInputs(log_probs, old, advantages, mask, segments, denominators)
        loss = compute_policy_loss(name, inputs, PolicyLossConfig()).loss
        loss.backward()
        return loss.detach(), log_probs.grad

    return work


def verls_loss(name: str) -> Work:
    """The loss and its gradient by the log-probs, ``[T]``."""

    def work(batch: Batch) -> tuple[Tensor, ...]:
        from verl.trainer.ppo import core_algos
        from verl.workers.config import ActorConfig

        log_probs = batch.columns["log_probs"].values().detach().requires_grad_()
        padded = [batch.columns[of].to_padded_tensor(0.0) for of in ("old_log_probs", "advantages")]
        mask = batch.columns["response_mask"].to_padded_tensor(0).bool()
        loss, _ = core_algos.get_policy_loss_fn(name)(
            padded[0],
            jagged(log_probs, batch.segments).to_padded_tensor(0.0),
            padded[1],
            mask,
            config=ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True),
        )
        loss.backward()
        return loss.detach(), log_probs.grad

    return work
