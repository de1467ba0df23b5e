"""verl's config dataclasses: fields and defaults are the keys of verl 0.9.0's YAML in ``configs/verl_keys.tsv``.

A table says which group of keys a class holds, and where the class differs from the YAML: fields that the YAML lacks
and defaults that are others. ``tests/oracle`` compares both with verl.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from typing import Any

import yaml

from compat.configs.groups import (
    MISSING,
    ActorGroup,
    CriticGroup,
    Group,
    ModelGroup,
    OptimizerGroup,
)
from compat.configs.presets import CorrectionGroup
from compat.utils.profiler import ProfilerConfig
from runtime.config.tables import verl_defaults

Class = type[Any]


@dataclass(frozen=True)
class ClassOf:
    """One dataclass: the group of keys that it holds, and how it differs from the YAML."""

    group: str
    base: str | Class = Group
    mutable: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the YAML lacks, and other defaults."""
    without: frozenset[str] = frozenset()
    """Keys of the group that are fields of a subclass only, or of none."""


def _mutable(*names: str) -> frozenset[str]:
    return frozenset(names)


ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_MICRO = _mutable("ppo_mini_batch_size", "ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu", "engine")
_INFERENCE = {"ppo_infer_micro_batch_size_per_gpu": None}
_ENGINE_LIMITS: dict[str, Any] = {
    **dict.fromkeys(("max_token_len_per_gpu", "micro_batch_size_per_gpu"), None),
    **dict.fromkeys(("infer_max_token_len_per_gpu", "infer_micro_batch_size_per_gpu"), None),
    "use_dynamic_bsz": True,
    "use_fused_kernels": False,
    "use_remove_padding": True,
    "router_replay": {},
}
_OF_ENGINE = _mutable(*_ENGINE_LIMITS, "forward_only", "param_offload") - {"router_replay"}

CLASSES: dict[str, ClassOf] = {
    "KLControlConfig": ClassOf("algorithm.kl_ctrl"),
    "FilterGroupsConfig": ClassOf("algorithm.filter_groups"),
    "RolloutCorrectionConfig": ClassOf(
        "algorithm.rollout_correction", CorrectionGroup, defaults={"rollout_is": "sequence"}
    ),
    "AlgoConfig": ClassOf(
        "algorithm",
        defaults={
            "gdpo_reward_keys": None,
            "gdpo_reward_weights": None,
            "filter_groups": None,
            "rollout_correction": None,
            "pf_ppo": {},
        },
    ),
    "CheckpointConfig": ClassOf(f"{ACTOR}.checkpoint", defaults={"save_lora_only": False}),
    "PolicyLossConfig": ClassOf(f"{ACTOR}.policy_loss", defaults={"rollout_correction": "RolloutCorrectionConfig"}),
    "RouterReplayConfig": ClassOf(f"{ACTOR}.router_replay"),
    "QATConfig": ClassOf(f"{ACTOR}.qat"),
    "OptimizerConfig": ClassOf(
        f"{ACTOR}.optim",
        OptimizerGroup,
        _mutable("clip_grad", "total_training_steps", "lr_warmup_steps"),
        {"lr": 1e-3, "betas": (0.9, 0.999), "grad_clip": None},
        _mutable("lr_scheduler_type", "min_lr_ratio", "num_cycles", "optimizer", "optimizer_impl", "warmup_style")
        | {"override_optimizer_config", "zero_indexed_step"},
    ),
    "FSDPOptimizerConfig": ClassOf(
        f"{ACTOR}.optim", "OptimizerConfig", _mutable("lr_scheduler_type"), {"min_lr_ratio": None}
    ),
    "FSDPEngineConfig": ClassOf(
        f"{ACTOR}.fsdp_config",
        mutable=_OF_ENGINE | {"ulysses_sequence_parallel_size"},
        defaults={
            **_ENGINE_LIMITS,
            "mixed_precision": None,
            "wrap_policy": {},
            "turbo_config": {},
            "use_no_sync_for_gradient_accumulation": True,
        },
    ),
    "MtpConfig": ClassOf(f"{MODEL}.mtp"),
    "HFModelConfig": ClassOf(
        MODEL,
        ModelGroup,
        _mutable("model_type", "hf_config_path", "tokenizer_path", "hf_config", "generation_config", "tokenizer")
        | _mutable("processor", "local_path", "architectures", "local_hf_config_path", "local_tokenizer_path", "mtp"),
        {
            "path": MISSING,
            "model_type": "language_model",
            "load_tokenizer": True,
            **dict.fromkeys(("local_path", "local_hf_config_path", "local_tokenizer_path", "hf_config"), None),
            **dict.fromkeys(("generation_config", "tokenizer", "processor", "architectures"), None),
            "target_parameters": None,
            "lora": {},
            "fused_kernel_options": {},
        },
    ),
    "ActorConfig": ClassOf(
        ACTOR,
        ActorGroup,
        _MICRO | {"ppo_infer_micro_batch_size_per_gpu", "model_config"},
        {
            **_INFERENCE,
            "strategy": MISSING,
            "rollout_n": MISSING,
            "ppo_infer_max_token_len_per_gpu": 16384,
            "global_batch_info": {},
            "engine": {},
            "model_config": {},
        },
        _mutable("entropy_checkpointing", "entropy_from_logits_chunk_size", "entropy_from_logits_with_chunking")
        | _mutable("fsdp_config", "grad_clip", "pad_to_length", "ulysses_sequence_parallel_size")
        | _mutable("use_remove_padding", "router_replay"),
    ),
    "FSDPActorConfig": ClassOf(
        ACTOR,
        "ActorConfig",
        defaults={"strategy": "fsdp", "use_rollout_log_probs": False},
        without=_mutable("router_replay"),
    ),
    "CriticConfig": ClassOf(
        "critic",
        CriticGroup,
        _MICRO | {"model"},
        {
            **_INFERENCE,
            "strategy": MISSING,
            "rollout_n": 1,
            "ppo_mini_batch_size": 1,
            "ppo_infer_max_token_len_per_gpu": 32768,
            "shuffle": True,
            "model": None,
            "engine": {},
        },
        _mutable("forward_micro_batch_size", "forward_micro_batch_size_per_gpu", "fsdp", "grad_clip")
        | {"ulysses_sequence_parallel_size"},
    ),
    "FSDPCriticConfig": ClassOf(
        "critic",
        "CriticConfig",
        _mutable("forward_micro_batch_size", "forward_micro_batch_size_per_gpu"),
        {"strategy": "fsdp", "forward_micro_batch_size": 1, "forward_micro_batch_size_per_gpu": 1},
    ),
    "FSDPCriticModelCfg": ClassOf(
        "critic.model",
        defaults={"use_remove_padding": False, "fsdp_config": "FSDPEngineConfig", "lora": {}},
        without=_mutable("custom_chat_template", "exclude_modules", "fused_kernel_options", "hf_config_path")
        | _mutable("lora_adapter_path", "mtp", "use_fused_kernels", "use_liger"),
    ),
    "SamplingConfig": ClassOf(f"{ROLLOUT}.val_kwargs", defaults={"temperature": 1.0, "do_sample": True}),
    "MultiTurnConfig": ClassOf(f"{ROLLOUT}.multi_turn", mutable=_mutable("max_assistant_turns", "max_user_turns")),
    "CustomAsyncServerConfig": ClassOf(f"{ROLLOUT}.agent.custom_async_server"),
    "AgentLoopConfig": ClassOf(f"{ROLLOUT}.agent", defaults={"agent_loop_manager_class": None}),
    "TraceConfig": ClassOf(f"{ROLLOUT}.trace"),
    "PrometheusConfig": ClassOf(f"{ROLLOUT}.prometheus"),
    "CheckpointEngineConfig": ClassOf(f"{ROLLOUT}.checkpoint_engine", mutable=_mutable("backend")),
    "RolloutConfig": ClassOf(
        ROLLOUT,
        mutable=_mutable("max_model_len", "load_format", "engine_kwargs", "prompt_length", "response_length")
        | _mutable("expert_parallel_size", "moe_tensor_parallel_size", "full_determinism", "max_num_seqs"),
        defaults={
            "max_num_seqs": 1024,
            "calculate_log_probs": False,
            "repetition_penalty": 1.0,
            "standalone_gpu_memory_utilization": None,
            "moe_tensor_parallel_size": 1,
            "checkpoint_manager_class": None,
            "custom": None,
            "layer_name_map": {},
            "limit_images": None,
            "enable_sleep_mode": True,
            "router_config_path": None,
            "mtp": "MtpConfig",
            "engine_kwargs": {},
        },
        without=_mutable("disaggregation"),
    ),
    "SandboxFusionConfig": ClassOf("reward.sandbox_fusion"),
    "RewardModelConfig": ClassOf("reward.reward_model"),
    "RewardConfig": ClassOf("reward"),
}
"""In the order in which one is a part of another."""

CLASS_OF_KEY: dict[str, str] = {
    "kl_ctrl": "KLControlConfig",
    "filter_groups": "FilterGroupsConfig",
    "rollout_correction": "RolloutCorrectionConfig",
    "checkpoint": "CheckpointConfig",
    "policy_loss": "PolicyLossConfig",
    "qat": "QATConfig",
    "optim": "FSDPOptimizerConfig",
    "fsdp_config": "FSDPEngineConfig",
    "fsdp": "FSDPEngineConfig",
    "mtp": "MtpConfig",
    "val_kwargs": "SamplingConfig",
    "multi_turn": "MultiTurnConfig",
    "custom_async_server": "CustomAsyncServerConfig",
    "agent": "AgentLoopConfig",
    "trace": "TraceConfig",
    "prometheus": "PrometheusConfig",
    "checkpoint_engine": "CheckpointEngineConfig",
    "sandbox_fusion": "SandboxFusionConfig",
    "reward_model": "RewardModelConfig",
    "profiler": "ProfilerConfig",
    "router_replay": "RouterReplayConfig",
}
"""The class of a group by its key."""

MADE: dict[str, Class] = {"ProfilerConfig": ProfilerConfig}
"""The classes by name."""


def _defaults(group: str) -> dict[str, Any]:
    """The keys of a group with their defaults; those of a group inside it are a dict."""
    tree: dict[str, Any] = {}
    for key, versions in verl_defaults().items():
        if key.startswith(f"{group}.") and versions:
            *parents, last = key.removeprefix(f"{group}.").split(".")
            inner = tree
            for parent in parents:
                inner = inner.setdefault(parent, {})
            inner[last] = versions[0]
    return {name: _resolved(value, tree) for name, value in tree.items()}


def _resolved(value: Any, siblings: Mapping[str, Any]) -> Any:
    """A default without interpolation: a sibling's, or what ``oc.select`` falls back on."""
    if isinstance(value, dict):
        return {name: _resolved(inner, value) for name, inner in value.items()}
    if not isinstance(value, str) or not value.startswith("${"):
        return value
    text = value.removeprefix("${").removesuffix("}")
    if text.startswith("."):
        return _resolved(siblings[text[1:]], siblings)
    fallback = yaml.safe_load(text.partition(",")[2] or "null")
    return None if isinstance(fallback, str) and fallback.startswith("${") else fallback


def _field(name: str, value: Any) -> tuple[str, Any, Any]:
    """A dataclass field; ``value`` may be the name of a class, or a dict of a group that has one."""
    made = MADE.get(value) if isinstance(value, str) else None
    if made is None and isinstance(value, dict) and value:
        made = MADE.get(CLASS_OF_KEY.get(name, ""))
    if made is not None:
        return name, Any, field(default_factory=made)
    if isinstance(value, list | dict):
        return name, Any, field(default_factory=lambda: copy.deepcopy(value))
    return name, Any, field(default=value)


def _make(name: str, spec: ClassOf) -> Class:
    base = MADE[spec.base] if isinstance(spec.base, str) else spec.base
    inherited = set(getattr(base, "__dataclass_fields__", ()))
    values = {**_defaults(spec.group), **spec.defaults}
    own = [key for key in values if key in spec.defaults or key not in {*inherited, *spec.without}]
    columns = [_field(key, values[key]) for key in own]
    mutable = {*getattr(base, "_mutable_fields", ()), *spec.mutable}
    made: Class = make_dataclass(
        name, columns, bases=(base,), namespace={"_mutable_fields": mutable, "__module__": __name__}
    )
    made.__doc__ = f"``{spec.group}`` of the config."
    return made


for _name, _spec in CLASSES.items():
    MADE[_name] = _make(_name, _spec)
globals().update(MADE)
__all__ = [*MADE]
