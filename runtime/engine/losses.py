"""What an engine minimises: the actor's and the critic's loss of one micro-batch, made from ``shared_algos``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import torch
from omegaconf import DictConfig
from torch import Tensor

from runtime.algorithms import policy_loss_config, policy_loss_name, value_loss_config
from runtime.engine.mini_batch import MiniBatchRows
from runtime.errors import ConfigError
from runtime.trajectories import TrajectoryBatch
from shared_algos.aggregation import Denominators, LossOutput
from shared_algos.entropy import entropy_loss
from shared_algos.errors import AlgorithmError
from shared_algos.kl import check_kl_penalty, kl_loss
from shared_algos.policy_losses import (
    POLICY_LOSSES,
    PolicyLossInputs,
    Selection,
    check_policy_loss,
    compute_policy_loss,
    select_tokens,
)
from shared_algos.value_loss import ValueLossInputs, compute_value_loss

Select: TypeAlias = Callable[[MiniBatchRows, torch.Generator], Selection]


class Loss(Protocol):
    """A loss over the response tokens of a mini-batch, computed micro-batch by micro-batch."""

    prefix: str
    """Of the metrics the engine adds, ``actor`` or ``critic``."""
    horizon: float
    """Divisor of ``seq-mean-token-sum-norm``, in tokens."""
    needs_entropy: bool
    """Whether ``outputs`` must hold the entropy."""
    constants: Mapping[str, float]
    """Metrics that are settings, and so do not add up over micro-batches."""
    selects_by: tuple[str, ...]
    """The columns that ``select`` looks at, beside the log-probs of the policy as it is."""
    select: Select | None
    """What decides columns of a whole mini-batch before it is split; ``None`` where nothing has to."""

    def __call__(self, outputs: Mapping[str, Tensor], batch: TrajectoryBatch, denominators: Denominators) -> LossOutput:
        """The part that a micro-batch adds: its loss, and metrics that add up over micro-batches and ranks."""
        ...


class ActorLoss:
    """Policy loss, less the entropy bonus, plus the KL to the reference (verl's ``ppo_loss`` and its metric names)."""

    prefix = "actor"
    selects_by: tuple[str, ...] = ("old_log_probs", "advantages", "response_mask")

    def __init__(self, config: DictConfig) -> None:
        """Read the config of a run. Raises ConfigError for a loss, mode or KL estimator that does not exist."""
        actor = config.actor_rollout_ref.actor
        self._name = policy_loss_name(config)
        self._config = policy_loss_config(config)
        self._entropy_coeff = float(actor.entropy_coeff)
        self._kl_type = actor.kl_loss_type
        self._kl_coef = float(actor.kl_loss_coef) if actor.use_kl_loss else None
        try:
            check_policy_loss(self._name, self._config)
            check_kl_penalty(self._kl_type)
        except AlgorithmError as error:
            raise ConfigError(f"actor_rollout_ref.actor: {error}") from error
        self.horizon = float(actor.loss_scale_factor or config.data.max_response_length)
        self.select: Select | None = None if POLICY_LOSSES.get(self._name).select is None else self._select
        self.needs_entropy = bool(actor.calculate_entropy) or self._entropy_coeff != 0
        self.constants: Mapping[str, float] = {} if self._kl_coef is None else {"actor/kl_coef": self._kl_coef}

    def __call__(self, outputs: Mapping[str, Tensor], batch: TrajectoryBatch, denominators: Denominators) -> LossOutput:
        """outputs: ``log_probs [T]``, ``entropy [T]`` if needed; batch: ``old_log_probs``, ``advantages``, the mask."""
        policy = compute_policy_loss(self._name, self._inputs(outputs, batch, denominators), self._config)
        loss, metrics = policy.loss, {**policy.metrics, "actor/pg_loss": policy.loss.detach()}
        mask, segments, mode = batch["response_mask"], batch.responses, self._config.loss_agg_mode
        if self.needs_entropy:
            entropy = entropy_loss(outputs["entropy"], mask, segments, denominators, mode)
            metrics["actor/entropy_loss"] = entropy.detach()
            if self._entropy_coeff:
                loss = loss - self._entropy_coeff * entropy
        if self._kl_coef is not None:
            reference = batch["ref_log_prob"]
            kl = kl_loss(outputs["log_probs"], reference, mask, segments, denominators, self._kl_type, mode)
            metrics["actor/kl_loss"] = kl.detach()
            loss = loss + self._kl_coef * kl
        return LossOutput(loss, metrics)

    def _select(self, rows: MiniBatchRows, generator: torch.Generator) -> Selection:
        mask = rows.columns["response_mask"]
        denominators = Denominators.count(mask, rows.segments, self.horizon)
        inputs = PolicyLossInputs(**rows.columns, segments=rows.segments, denominators=denominators)
        return select_tokens(self._name, inputs, self._config, generator) or Selection()

    def _inputs(
        self, outputs: Mapping[str, Tensor], batch: TrajectoryBatch, denominators: Denominators
    ) -> PolicyLossInputs:
        return PolicyLossInputs(
            log_probs=outputs["log_probs"],
            old_log_probs=batch["old_log_probs"],
            advantages=batch["advantages"],
            response_mask=batch["response_mask"],
            segments=batch.responses,
            denominators=denominators,
            rollout_is_weights=batch.columns.get("rollout_is_weights"),
            selected=batch.columns.get("selected"),
        )


class CriticLoss:
    """The clipped value loss (verl's ``value_loss`` and its metric names)."""

    prefix = "critic"
    needs_entropy = False
    selects_by: tuple[str, ...] = ()
    select: Select | None = None

    def __init__(self, config: DictConfig) -> None:
        """Read the config of a run. Raises ConfigError for an unknown aggregation or a bad clip range."""
        self._config = value_loss_config(config)
        self.horizon = float(config.critic.loss_scale_factor or config.data.max_response_length)
        self.constants: Mapping[str, float] = {}

    def __call__(self, outputs: Mapping[str, Tensor], batch: TrajectoryBatch, denominators: Denominators) -> LossOutput:
        """outputs: ``values [T]``; batch: ``values``, ``returns`` and the mask."""
        inputs = ValueLossInputs(
            predictions=outputs["values"],
            values=batch["values"],
            returns=batch["returns"],
            response_mask=batch["response_mask"],
            segments=batch.responses,
            denominators=denominators,
        )
        output = compute_value_loss(inputs, self._config)
        return LossOutput(output.loss, {**output.metrics, "critic/vf_loss": output.loss.detach()})
