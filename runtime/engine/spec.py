"""What an engine is built from: the config's keys, read once and typed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from runtime.engine.micro_batches import WHOLE, MicroBatchLimit, RowLimit, TokenLimit
from runtime.errors import ConfigError
from runtime.fs import local_model

logger = logging.getLogger(__name__)

_DTYPES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
}
_STRATEGIES = ("fsdp", "fsdp2")


class Role(StrEnum):
    """What the engine's model computes."""

    POLICY = "policy"
    """Log-probabilities and entropies: the actor and the reference."""
    VALUE = "value"
    """Values: the critic."""


@dataclass(frozen=True)
class ModelSpec:
    """Which model, and how it is held.

    path: a local folder. dtype: of the stored parameters. compute_dtype: of forward and backward. seed: of a new value
    head. chunk_rows: tokens whose logits exist at a time.
    """

    path: str
    dtype: torch.dtype = torch.float32
    compute_dtype: torch.dtype = torch.float32
    use_remove_padding: bool = True
    gradient_checkpointing: bool = False
    trust_remote_code: bool = False
    override_config: Mapping[str, Any] = field(default_factory=dict)
    reshard_after_forward: bool = True
    seed: int = 42
    chunk_rows: int = 256


@dataclass(frozen=True)
class OptimizerSpec:
    """AdamW and its schedule, with verl's key names. Steps are training steps, not mini-batches.

    total_training_steps: at most 0 where the run's length is not known, which only a constant schedule can do with.
    grad_clip: the largest L2 norm of the gradient over all parameters and ranks.
    """

    lr: float
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    lr_scheduler_type: str = "constant"
    lr_warmup_steps: int = -1
    lr_warmup_steps_ratio: float = 0.0
    min_lr_ratio: float = 0.0
    num_cycles: float = 0.5
    total_training_steps: int = -1
    grad_clip: float = 1.0
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineSpec:
    """Everything one engine needs. Without ``optimizer`` it only infers."""

    role: Role
    model: ModelSpec
    infer_limit: MicroBatchLimit
    train_limit: MicroBatchLimit = WHOLE
    optimizer: OptimizerSpec | None = None


def actor_spec(config: DictConfig) -> EngineSpec:
    """The engine of the policy, from ``actor_rollout_ref.{model,actor,rollout}`` of the whole config."""
    group = config.actor_rollout_ref
    model = _model_spec(
        group.model, group.actor.fsdp_config, group.actor, config, group.actor.entropy_from_logits_chunk_size
    )
    return EngineSpec(
        Role.POLICY,
        model,
        infer_limit=_log_prob_limit(group.rollout, "actor_rollout_ref.rollout"),
        train_limit=_train_limit(group.actor, "actor_rollout_ref.actor"),
        optimizer=_optimizer_spec(group.actor, "actor_rollout_ref.actor"),
    )


def ref_spec(config: DictConfig) -> EngineSpec:
    """The engine of the frozen reference policy, from ``actor_rollout_ref.{model,ref}`` of the whole config."""
    group = config.actor_rollout_ref
    model = _model_spec(
        group.model, group.ref.fsdp_config, group.ref, config, group.actor.entropy_from_logits_chunk_size
    )
    return EngineSpec(Role.POLICY, model, infer_limit=_log_prob_limit(group.ref, "actor_rollout_ref.ref"))


def critic_spec(config: DictConfig) -> EngineSpec:
    """The engine of the critic, from ``critic`` of the whole config."""
    group = config.critic
    return EngineSpec(
        Role.VALUE,
        _model_spec(group.model, group.fsdp, group, config),
        infer_limit=_limit(
            group.use_dynamic_bsz,
            group.forward_micro_batch_size_per_gpu,
            group.forward_max_token_len_per_gpu,
            "critic.forward_micro_batch_size_per_gpu",
        ),
        train_limit=_train_limit(group, "critic"),
        optimizer=_optimizer_spec(group, "critic"),
    )


def _model_spec(
    model: DictConfig, fsdp: DictConfig, group: DictConfig, config: DictConfig, chunk_rows: int = 256
) -> ModelSpec:
    for strategy in {group.strategy, fsdp.strategy}:
        if strategy not in _STRATEGIES:
            raise ConfigError(f"strategy {strategy!r} is not available; use fsdp2 (fsdp means the same)")
    packed = group.get("use_remove_padding")
    return ModelSpec(
        path=local_model(model.path),
        dtype=_dtype(fsdp.model_dtype, "model_dtype"),
        compute_dtype=_dtype(fsdp.dtype, "dtype"),
        use_remove_padding=model.use_remove_padding if packed is None else packed,
        gradient_checkpointing=model.enable_gradient_checkpointing,
        trust_remote_code=model.trust_remote_code,
        override_config=_override_config(model),
        reshard_after_forward=fsdp.reshard_after_forward,
        seed=config.runtime.seed,
        chunk_rows=chunk_rows,
    )


def _override_config(model: DictConfig) -> dict[str, Any]:
    fields = _plain(model.override_config)
    asked = fields.pop("attn_implementation", None)
    if asked is not None:
        logger.warning("model.override_config.attn_implementation=%s has no effect: the engine brings its own", asked)
    return fields


def _optimizer_spec(group: DictConfig, key: str) -> OptimizerSpec:
    optim = group.optim
    if (optim.optimizer, optim.optimizer_impl) != ("AdamW", "torch.optim"):
        raise ConfigError(
            f"{key}.optim.optimizer={optim.optimizer} of {optim.optimizer_impl}: only AdamW of torch.optim"
        )
    return OptimizerSpec(
        lr=float(optim.lr),
        weight_decay=optim.weight_decay,
        betas=(optim.betas[0], optim.betas[1]),
        lr_scheduler_type=optim.lr_scheduler_type,
        lr_warmup_steps=-1 if optim.lr_warmup_steps is None else optim.lr_warmup_steps,
        lr_warmup_steps_ratio=optim.lr_warmup_steps_ratio,
        min_lr_ratio=optim.min_lr_ratio or 0.0,
        num_cycles=optim.num_cycles,
        total_training_steps=optim.total_training_steps,
        grad_clip=group.grad_clip,
        more=_plain(optim.override_optimizer_config),
    )


def _train_limit(group: DictConfig, key: str) -> MicroBatchLimit:
    rows, tokens = group.ppo_micro_batch_size_per_gpu, group.ppo_max_token_len_per_gpu
    return _limit(group.use_dynamic_bsz, rows, tokens, f"{key}.ppo_micro_batch_size_per_gpu")


def _log_prob_limit(group: DictConfig, key: str) -> MicroBatchLimit:
    rows, tokens = group.log_prob_micro_batch_size_per_gpu, group.log_prob_max_token_len_per_gpu
    return _limit(group.log_prob_use_dynamic_bsz, rows, tokens, f"{key}.log_prob_micro_batch_size_per_gpu")


def _limit(by_tokens: bool, rows: int | None, tokens: int, key: str) -> MicroBatchLimit:
    if rows is not None and rows < 1:
        raise ConfigError(f"{key} must be at least 1, got {rows}")
    return TokenLimit(tokens) if by_tokens else RowLimit(rows)


def _dtype(name: str, key: str) -> torch.dtype:
    try:
        return _DTYPES[name]
    except KeyError:
        raise ConfigError(f"{key}={name!r} is not one of {sorted(_DTYPES)}") from None


def _plain(node: DictConfig | None) -> dict[str, Any]:
    return {} if node is None else dict(OmegaConf.to_container(node, resolve=True))  # type: ignore[arg-type]
