"""Ray actors that hold one rank of the policy (and its frozen reference) or of the critic.

They take any container that is registered with ``runtime.containers`` and answer in kind.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import ray
import torch
import torch.distributed as dist
from omegaconf import DictConfig

from runtime import containers
from runtime.config import corrects_rollout, num_ranks, uses_reference, writes_sum_pi_squared
from runtime.devices import compute_repeatably, device_of
from runtime.engine.checkpoint import load_engine, save_engine
from runtime.engine.engine import Engine
from runtime.engine.losses import ActorLoss, CriticLoss, Loss
from runtime.engine.spec import EngineSpec, actor_spec, critic_spec, ref_spec
from runtime.errors import ConfigError
from runtime.recipe import import_modules
from runtime.workers.group import free_address

_TOKENS = ("input_ids", "position_ids")


@dataclass(frozen=True)
class UpdatePlan:
    """How a batch is gone over in one training step."""

    mini_batch_rows: int
    """Of all ranks together."""
    epochs: int
    shuffle: bool
    seed: int
    """Of the permutation, together with the step."""

    @classmethod
    def of(cls, settings: DictConfig, rollout_n: int) -> UpdatePlan:
        """settings: of the actor or the critic, whose ``ppo_mini_batch_size`` counts prompts of ``rollout_n`` rows."""
        rows = settings.ppo_mini_batch_size * rollout_n
        return cls(rows, settings.ppo_epochs, settings.shuffle, settings.data_loader_seed)


class ModelWorker:
    """What every rank of a model does: join the process group, hold engines, give weights away."""

    engine: Engine

    def __init__(self, rank: int, world_size: int, config: DictConfig) -> None:
        self.rank, self.world_size, self.config = rank, world_size, config
        torch.set_num_threads(torch_threads(config))
        self.device = device_of(config)
        compute_repeatably(config)

    def rendezvous_address(self) -> str:
        """An address that the ranks can meet at; asked of rank 0."""
        return free_address()

    def setup(self, address: str) -> None:
        """Join the other ranks, unless this process has joined them, and load the model; collective."""
        import_modules(self.config)
        if not dist.is_initialized():
            dist.init_process_group(
                "nccl" if self.device.type == "cuda" else "gloo",
                init_method=address,
                rank=self.rank,
                world_size=self.world_size,
                timeout=timedelta(seconds=self.config.actor_rollout_ref.nccl_timeout),
            )
        # Models with dropout draw from here; both trainers make the same calls in the same order.
        torch.manual_seed(self.config.runtime.seed + self.rank)
        self.load()

    def load(self) -> None:
        """Build the engines of this worker."""
        raise NotImplementedError

    def full_weights(self) -> Any:
        """The engine's weights by Hugging Face name as a Ray reference, ``None`` except on rank 0; collective."""
        weights = self.engine.full_state_dict()
        return ray.put(weights) if self.rank == 0 else None

    def fingerprint(self) -> int:
        """A number of this rank's weights as they are now, whoever has changed them."""
        return self.engine.fingerprint()

    @property
    def updates(self) -> int:
        """Training steps that this model has behind it."""
        return self.engine.updates

    def digests(self) -> dict[str, str]:
        """sha256 of each weight, empty except on rank 0; collective."""
        return self.engine.digest()

    def save_checkpoint(self, folder: str) -> None:
        """Write the engine's state to ``folder``; collective. See ``runtime.engine.checkpoint``."""
        save_engine(self.engine, folder)

    def load_checkpoint(self, folder: str) -> None:
        """Read what ``save_checkpoint`` wrote; collective."""
        load_engine(self.engine, folder)

    def _engine(self, spec: EngineSpec) -> Engine:
        return Engine(spec, self.device, self.rank, self.world_size)

    def _infer(self, engine: Engine, shard: Any, names: dict[str, str]) -> Any:
        """Run ``engine`` over a shard and answer with its outputs, renamed by ``names``; other outputs are left out."""
        batch = containers.read_batch(shard, _TOKENS)
        outputs = engine.infer(batch, self._temperature, also=names)
        return containers.answer(shard, batch, {new: outputs[old] for old, new in names.items()})

    def plan(self, settings: DictConfig) -> UpdatePlan:
        """What the config says of one training step."""
        return UpdatePlan.of(settings, self.config.actor_rollout_ref.rollout.n)

    def _update(
        self, shard: Any, reads: tuple[str, ...], plan: UpdatePlan, loss: Loss, step: int
    ) -> dict[str, list[float]]:
        """Train on a shard; one value a mini-batch for each metric, and the learning rate."""
        batch = containers.read_batch(shard, (*_TOKENS, "response_mask", *reads))
        steps = self.engine.train(
            batch,
            plan.mini_batch_rows // self.world_size,
            loss,
            epochs=plan.epochs,
            shuffle=plan.shuffle,
            seed=plan.seed + step,
            temperature=self._temperature,
        )
        names = dict.fromkeys(name for metrics in steps for name in metrics)
        series = {name: [metrics[name] for metrics in steps if name in metrics] for name in names}
        return {**series, f"{loss.prefix}/lr": [self.engine.lr_step()]}

    @property
    def _temperature(self) -> float:
        """What logits are divided by; greedy rollouts count as temperature 1, as their log-probs do."""
        rollout = self.config.actor_rollout_ref.rollout
        return float(rollout.temperature) if rollout.do_sample and rollout.temperature > 0 else 1.0


class ActorWorker(ModelWorker):
    """One rank of the policy, and of the reference when the config uses one.

    policy, reference: what to load, where a recipe gives the two to groups of their own.
    """

    def __init__(
        self, rank: int, world_size: int, config: DictConfig, policy: bool = True, reference: bool | None = None
    ) -> None:
        super().__init__(rank, world_size, config)
        self._with_policy = policy
        self._with_reference = uses_reference(config) if reference is None else reference

    def load(self) -> None:
        if self._with_policy:
            self.engine = self._engine(actor_spec(self.config))
            self.loss = ActorLoss(self.config)
        self.reference = self._engine(ref_spec(self.config)) if self._with_reference else None

    def compute_log_prob(self, shard: Any) -> Any:
        """``old_log_probs`` and ``entropy`` of the policy as it is now, and ``sum_pi_squared`` where it is needed."""
        names = {"log_probs": "old_log_probs", "entropy": "entropy"}
        if writes_sum_pi_squared(self.config):
            names["sum_pi_squared"] = "sum_pi_squared"
        return self._infer(self.engine, shard, names)

    def compute_ref_log_prob(self, shard: Any) -> Any:
        """``ref_log_prob`` of the reference policy."""
        if self.reference is None:
            raise ConfigError("no reference policy runs; set actor.use_kl_loss or algorithm.use_kl_in_reward")
        return self._infer(self.reference, shard, {"log_probs": "ref_log_prob"})

    def update_actor(self, shard: Any, step: int, plan: UpdatePlan | None = None) -> dict[str, list[float]]:
        """Update the policy on this rank's rows; metrics by mini-batch, of the whole mini-batch.

        plan: what the config says when ``None``.
        """
        actor = self.config.actor_rollout_ref.actor
        reads: tuple[str, ...] = ("old_log_probs", "advantages")
        if actor.use_kl_loss:
            reads += ("ref_log_prob",)
        if corrects_rollout(self.config):
            reads += ("rollout_is_weights",)
        return self._update(shard, reads, plan or self.plan(actor), self.loss, step)


class CriticWorker(ModelWorker):
    """One rank of the critic."""

    def load(self) -> None:
        self.engine = self._engine(critic_spec(self.config))
        self.loss = CriticLoss(self.config)

    def compute_values(self, shard: Any) -> Any:
        """``values`` of the critic as it is now."""
        return self._infer(self.engine, shard, {"values": "values"})

    def update_critic(self, shard: Any, step: int, plan: UpdatePlan | None = None) -> dict[str, list[float]]:
        """Update the critic on this rank's rows; see ``ActorWorker.update_actor``."""
        return self._update(shard, ("values", "returns"), plan or self.plan(self.config.critic), self.loss, step)


def torch_threads(config: DictConfig) -> int:
    """Threads of each rank: ``runtime.torch_threads``, or this machine's cores shared by the ranks, at least 1."""
    return config.runtime.torch_threads or max(1, (os.cpu_count() or 1) // num_ranks(config))
