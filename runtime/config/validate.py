"""Values that cannot run, refused when the config is read."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from runtime.algorithms import (
    advantage_config,
    policy_loss_config,
    policy_loss_name,
    rollout_correction_config,
    value_loss_config,
)
from runtime.config.batch_sizes import check_batch_sizes, check_positive
from runtime.config.nearest import nearest_key
from runtime.config.notes import ConfigNote
from runtime.config.registered import check_registered_names, load_algorithms
from runtime.config.roles import bypasses_old_log_prob, corrects_rollout, uses_critic
from runtime.config.types import read_key
from runtime.errors import ConfigError
from runtime.tracking import check_backends
from shared_algos.advantages import ADVANTAGES
from shared_algos.aggregation import AGGREGATIONS
from shared_algos.errors import AlgorithmError
from shared_algos.kl import KL_PENALTIES
from shared_algos.pf_ppo import METHODS
from shared_algos.policy_losses import POLICY_LOSSES, check_policy_loss

ACTOR, ROLLOUT, V1_MODE = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "trainer.v1.trainer_mode"
CORRECTION = "algorithm.rollout_correction"
TRAINED = (ACTOR, "critic")
FSDP = ("fsdp", "fsdp2")
STORED_TYPES = ("fp32", "bf16", "float32", "bfloat16")

CHOICES: dict[str, tuple[str, ...]] = {
    f"{ACTOR}.strategy": FSDP,
    "actor_rollout_ref.ref.strategy": FSDP,
    "critic.strategy": FSDP,
    f"{ACTOR}.fsdp_config.strategy": FSDP,
    "actor_rollout_ref.ref.fsdp_config.strategy": FSDP,
    "critic.fsdp.strategy": FSDP,
    f"{ACTOR}.fsdp_config.model_dtype": STORED_TYPES,
    "actor_rollout_ref.ref.fsdp_config.model_dtype": STORED_TYPES,
    "critic.fsdp.model_dtype": STORED_TYPES,
    f"{ACTOR}.fsdp_config.dtype": STORED_TYPES,
    "actor_rollout_ref.ref.fsdp_config.dtype": STORED_TYPES,
    "critic.fsdp.dtype": STORED_TYPES,
    f"{ROLLOUT}.dtype": STORED_TYPES,
    f"{ACTOR}.loss_agg_mode": AGGREGATIONS,
    "critic.loss_agg_mode": AGGREGATIONS,
    f"{ACTOR}.kl_loss_type": KL_PENALTIES,
    "algorithm.pf_ppo.reweight_method": METHODS,
    "algorithm.kl_penalty": KL_PENALTIES,
    "algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    f"{ACTOR}.optim.optimizer": ("AdamW",),
    "critic.optim.optimizer": ("AdamW",),
    f"{ACTOR}.optim.optimizer_impl": ("torch.optim",),
    "critic.optim.optimizer_impl": ("torch.optim",),
    f"{ACTOR}.optim.lr_scheduler_type": ("constant", "cosine"),
    "critic.optim.lr_scheduler_type": ("constant", "cosine"),
    "data.truncation": ("error", "left", "right", "middle"),
    "reward.reward_manager.source": ("register", "importlib"),
    "trainer.device": ("auto", "cpu", "cuda"),
    "trainer.resume_mode": ("auto", "disable", "resume_path"),
    "transfer_queue.backend.storage_backend": ("SimpleStorage",),
    f"{ROLLOUT}.name": ("hf",),
    f"{ROLLOUT}.mode": ("async",),
    V1_MODE: ("sync",),
}
"""The values that a key may have."""

NOT_BUILT: dict[tuple[str, str], str] = {
    (f"{ROLLOUT}.name", "vllm"): "rollout with vLLM is not built yet; use hf, which runs on any device",
    (f"{ROLLOUT}.name", "sglang"): "rollout with SGLang is not built; use hf, which runs on any device",
    (V1_MODE, "colocate_async"): "asynchronous training is not built yet; use sync",
    (V1_MODE, "separate_async"): "asynchronous training is not built yet; use sync",
    ("trainer.device", "npu"): "NPUs are not built; use cuda, cpu or auto",
    (f"{ACTOR}.strategy", "megatron"): "the Megatron engine is not built; use fsdp2",
}
"""Values that verl knows and we do not run, and what to do instead."""

POSITIVE = (
    "data.max_prompt_length",
    "data.max_response_length",
    f"{ROLLOUT}.response_length",
    f"{ROLLOUT}.max_num_seqs",
    f"{ROLLOUT}.agent.num_workers",
    f"{ROLLOUT}.val_kwargs.n",
    f"{ACTOR}.entropy_from_logits_chunk_size",
    "data.gen_batch_size",
    "data.val_batch_size",
    "data.filter_overlong_prompts_workers",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "trainer.max_actor_ckpt_to_keep",
    "trainer.max_critic_ckpt_to_keep",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units",
    "transfer_queue.backend.SimpleStorage.total_storage_size",
    "runtime.torch_threads",
    "runtime.num_cpus",
    "runtime.schedule_timeout_s",
    "runtime.rollout_timeout_s",
    "actor_rollout_ref.nccl_timeout",
)
"""Counts of at least 1 where they are set."""

RANGES: dict[str, tuple[float, float]] = {
    "algorithm.gamma": (0, 1),
    "algorithm.lam": (0, 1),
    "algorithm.kl_ctrl.kl_coef": (0, float("inf")),
    "algorithm.pf_ppo.weight_pow": (0, float("inf")),
    **{f"{role}.optim.lr": (0, 1) for role in TRAINED},
    **{f"{role}.optim.weight_decay": (0, float("inf")) for role in TRAINED},
    **{f"{role}.optim.lr_warmup_steps_ratio": (0, 1) for role in TRAINED},
    **{f"{role}.optim.min_lr_ratio": (0, 1) for role in TRAINED},
    f"{ACTOR}.clip_ratio": (0, float("inf")),
    f"{ACTOR}.clip_ratio_low": (0, 1),
    f"{ACTOR}.clip_ratio_high": (0, float("inf")),
    f"{ACTOR}.kl_loss_coef": (0, float("inf")),
    f"{ACTOR}.entropy_coeff": (float("-inf"), float("inf")),
    "critic.cliprange_value": (0, float("inf")),
    f"{ROLLOUT}.temperature": (0, float("inf")),
    f"{ROLLOUT}.val_kwargs.temperature": (0, float("inf")),
    **{key: (0, float("inf")) for key in ("runtime.seed", "data.seed")},
    **{f"{role}.data_loader_seed": (0, float("inf")) for role in TRAINED},
}
"""Inclusive bounds."""

ABOVE_ZERO: dict[str, str] = {
    **{f"{role}.loss_scale_factor": "it is a divisor" for role in TRAINED},
    **{f"{role}.grad_clip": "it is the largest norm of a gradient, and 0 would stop training" for role in TRAINED},
}
"""Numbers above 0 where they are set, and why."""

WAYS_OUT = {
    "values": "set critic.enable=true",
    "sum_pi_squared": f"set {CORRECTION}.bypass_mode=false, or choose another estimator",
    "reward_components": "name the scores that your reward function returns in algorithm.gdpo_reward_keys",
    "rollout_is_weights": f"set {CORRECTION}.rollout_is to token or sequence",
}
"""How to have what an estimator needs."""

_INERT_BECAUSE = {
    "loss_type": "it is read in bypass_mode only",
    "rollout_rs_threshold": "rollout_rs is null",
    "rollout_is_batch_normalize": "rollout_is is null",
    "rollout_is": "the ratio of bypass_mode's ppo_clip corrects by itself; for weights set loss_type=reinforce",
}

ADAPTIVE_KL_ABOVE_ZERO: dict[str, str] = {
    "algorithm.kl_ctrl.target_kl": "the measured KL is divided by it",
    "algorithm.kl_ctrl.horizon": "the number of trajectories is divided by it",
}
"""As ``ABOVE_ZERO``, where ``algorithm.kl_ctrl.type`` is adaptive."""


def validate(config: DictConfig, notes: list[ConfigNote]) -> None:
    """Check values and their combinations; what runs but deserves a word is appended to ``notes``.

    Raises ``ConfigError`` or ``BatchSizeError`` naming the keys and values.
    """
    for key, choices in CHOICES.items():
        _check_choice(config, key, choices)
    check_positive(config, *POSITIVE)
    for key, bounds in RANGES.items():
        _check_range(config, key, *bounds)
    _check_above_zero(config, ABOVE_ZERO)
    if config.algorithm.kl_ctrl.type == "adaptive":
        _check_above_zero(config, ADAPTIVE_KL_ABOVE_ZERO)
    for role in TRAINED:
        _check_betas(config, f"{role}.optim.betas")
    _check_lengths(config)
    _check_clipping(config, notes)
    _check_sampling(config, notes)
    load_algorithms(config)
    _check_advantages(config)
    _check_policy_loss(config, notes)
    _check_group_filter(config, notes)
    _check_pf_ppo(config)
    _check_trainer(config)
    check_batch_sizes(config, notes)
    check_registered_names(config)


def _check_choice(config: DictConfig, key: str, choices: tuple[str, ...]) -> None:
    value = read_key(config, key)
    if value in choices:
        return
    if (key, value) in NOT_BUILT:
        raise ConfigError(f"{key}={value!r} is not supported: {NOT_BUILT[key, value]}")
    near = nearest_key(str(value), choices)[0]
    raise ConfigError(f"{key}={value!r} is not one of {', '.join(choices)}; the nearest is {near!r}")


def _check_range(config: DictConfig, key: str, low: float, high: float) -> None:
    value: Any = read_key(config, key)
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{key}={value!r} is not between {low:g} and {high:g}")


def _check_above_zero(config: DictConfig, reasons: dict[str, str]) -> None:
    for key, reason in reasons.items():
        value: Any = read_key(config, key)
        if value is not None and not value > 0:
            raise ConfigError(f"{key}={value!r} must be above 0: {reason}")


def _check_betas(config: DictConfig, key: str) -> None:
    betas = list(read_key(config, key))
    numbers = [beta for beta in betas if isinstance(beta, int | float) and not isinstance(beta, bool) and 0 <= beta < 1]
    if len(betas) != 2 or len(numbers) != 2:
        raise ConfigError(f"{key}={betas!r} must be two numbers of at least 0 and below 1, such as [0.9,0.999]")


def _check_lengths(config: DictConfig) -> None:
    """Columns are as wide as ``data.max_response_length`` says; a longer response would have no room there."""
    asked, limit = config.actor_rollout_ref.rollout.response_length, config.data.max_response_length
    if asked > limit:
        raise ConfigError(
            f"{ROLLOUT}.response_length={asked} is more than data.max_response_length={limit} tokens; "
            "set data.max_response_length, which the other follows"
        )


def _check_clipping(config: DictConfig, notes: list[ConfigNote]) -> None:
    actor = config.actor_rollout_ref.actor
    if actor.clip_ratio_c <= 1:
        raise ConfigError(f"{ACTOR}.clip_ratio_c={actor.clip_ratio_c!r} must be above 1: it bounds a ratio (dual clip)")
    if actor.clip_ratio != 0.2 and None not in (actor.clip_ratio_low, actor.clip_ratio_high):
        message = (
            f"has no effect, as in verl: clip_ratio_low={actor.clip_ratio_low} and "
            f"clip_ratio_high={actor.clip_ratio_high} are read; set those"
        )
        notes.append(ConfigNote(f"{ACTOR}.clip_ratio", "warning", message))


def _check_sampling(config: DictConfig, notes: list[ConfigNote]) -> None:
    rollout = config.actor_rollout_ref.rollout
    for key, sampling in ((ROLLOUT, rollout), (f"{ROLLOUT}.val_kwargs", rollout.val_kwargs)):
        if sampling.do_sample and sampling.temperature == 0:
            raise ConfigError(f"{key}.temperature=0 cannot be sampled from; raise it, or set {key}.do_sample=false")
        if not 0 < sampling.top_p <= 1:
            raise ConfigError(f"{key}.top_p={sampling.top_p!r} must be above 0 and at most 1 (1: no cut)")
        if sampling.top_k != -1 and sampling.top_k < 1:
            raise ConfigError(f"{key}.top_k={sampling.top_k!r} must be -1 (no cut) or at least 1")
    for name, no_cut in (("top_k", -1), ("top_p", 1)):
        if rollout[name] != no_cut:
            message = "training log-probs are over the whole vocabulary, so they differ from what was sampled from"
            notes.append(ConfigNote(f"{ROLLOUT}.{name}", "warning", message))
    if not rollout.do_sample and rollout.n > 1:
        message = f"decoding greedily gives the same answer {rollout.n} times, so groups have no spread"
        notes.append(ConfigNote(f"{ROLLOUT}.do_sample", "warning", message))


def _check_advantages(config: DictConfig) -> None:
    """The estimator is registered, and what it needs will be there."""
    name = config.algorithm.adv_estimator
    _check_choice(config, "algorithm.adv_estimator", ADVANTAGES.names())
    advantage_config(config)
    value_loss_config(config)
    if name == "grpo_passk" and config.actor_rollout_ref.rollout.n == 1:
        raise ConfigError(
            f"algorithm.adv_estimator=grpo_passk compares the best answers of a prompt; raise {ROLLOUT}.n=1"
        )
    provided = {"old_log_probs", "reward_baselines"}
    if uses_critic(config):
        provided.add("values")
    if not bypasses_old_log_prob(config):
        provided.add("sum_pi_squared")
    if config.algorithm.gdpo_reward_keys:
        provided.add("reward_components")
    if corrects_rollout(config):
        provided.add("rollout_is_weights")
    for need in sorted(ADVANTAGES.get(name).needs - provided):
        trainer = "V1" if config.trainer.use_v1 else "legacy"
        way_out = WAYS_OUT.get(need, "choose another estimator")
        raise ConfigError(
            f"algorithm.adv_estimator={name} needs {need!r}, which the {trainer} trainer does not have here; {way_out}"
        )


def _check_policy_loss(config: DictConfig, notes: list[ConfigNote]) -> None:
    """The loss is registered, its settings are in bounds, and what rollout correction needs will be there."""
    key, mode = f"{ACTOR}.policy_loss.loss_mode", config.actor_rollout_ref.actor.policy_loss.loss_mode
    _check_choice(config, key, POLICY_LOSSES.names())
    correction = rollout_correction_config(config)
    name, bypass = policy_loss_name(config), bypasses_old_log_prob(config)
    try:
        check_policy_loss(name, policy_loss_config(config))
    except AlgorithmError as error:
        raise ConfigError(f"{ACTOR}.policy_loss: {error}") from error
    if name == "bypass_mode" and not bypass:
        raise ConfigError(
            f"{key}=bypass_mode needs {CORRECTION}.bypass_mode=true: it corrects against rollout log-probs"
        )
    if mode not in (name, "vanilla"):
        notes.append(
            ConfigNote(key, "warning", f"has no effect, as in verl: {CORRECTION}.bypass_mode chooses the loss")
        )
    # Losses with verl's signature say whether they have the parameter (compat.algorithms.losses).
    if corrects_rollout(config) and not getattr(POLICY_LOSSES.get(name).function, "takes_weights", True):
        raise ConfigError(
            f"{CORRECTION}.rollout_is={correction.rollout_is} would have no effect: policy loss {name!r} "
            f"({POLICY_LOSSES.get(name).reference}) has no parameter rollout_is_weights; add it, or set it to null"
        )
    wanted = [field for field in ("rollout_is", "rollout_rs", "bypass_mode") if getattr(correction, field)]
    if wanted and not config.actor_rollout_ref.rollout.calculate_log_probs:
        raise ConfigError(f"{CORRECTION}.{wanted[0]} needs {ROLLOUT}.calculate_log_probs=true")
    inert = {
        "loss_type": not bypass and correction.loss_type != "ppo_clip",
        "rollout_rs_threshold": correction.rollout_rs is None and correction.rollout_rs_threshold is not None,
        "rollout_is_batch_normalize": correction.rollout_is is None and correction.rollout_is_batch_normalize,
        "rollout_is": bypass and correction.loss_type == "ppo_clip" and correction.rollout_is is not None,
    }
    for field in (field for field, holds in inert.items() if holds):
        notes.append(ConfigNote(f"{CORRECTION}.{field}", "warning", f"changes no result: {_INERT_BECAUSE[field]}"))
    if bypass and config.actor_rollout_ref.actor.calculate_sum_pi_squared:
        raise ConfigError(
            f"{ACTOR}.calculate_sum_pi_squared=true needs the forward pass of old_log_prob, which "
            f"{CORRECTION}.bypass_mode=true leaves out; set one of them to false"
        )


def _check_group_filter(config: DictConfig, notes: list[ConfigNote]) -> None:
    settings, key = config.algorithm.filter_groups, "algorithm.filter_groups"
    if not settings.enable:
        return
    if settings.metric is None:
        raise ConfigError(f"{key}.enable=true needs {key}.metric: reward, or a score that your reward function returns")
    if settings.metric == "seq_final_reward" and config.algorithm.use_kl_in_reward:
        raise ConfigError(f"{key}.metric=seq_final_reward is not known before the KL is; set it to reward")
    if config.actor_rollout_ref.rollout.n == 1:
        notes.append(
            ConfigNote(f"{key}.enable", "warning", f"has no effect: {ROLLOUT}.n=1, and a group of one is kept")
        )


def _check_pf_ppo(config: DictConfig) -> None:
    estimator = config.algorithm.adv_estimator
    if config.algorithm.use_pf_ppo and estimator != "gae":
        raise ConfigError(
            f"algorithm.use_pf_ppo=true needs algorithm.adv_estimator=gae, not {estimator}: with any other estimator "
            "verl leaves it without effect; set adv_estimator=gae, or use_pf_ppo=false"
        )


def _check_trainer(config: DictConfig) -> None:
    trainer = config.trainer
    check_backends(trainer.logger)
    if not config.data.val_files and (trainer.val_before_train or trainer.test_freq > 0):
        raise ConfigError(
            "validation is on but data.val_files is null; "
            "name a file, or set trainer.val_before_train=false and trainer.test_freq=-1"
        )
    if config.critic.enable is not None and not isinstance(config.critic.enable, bool):
        raise ConfigError(
            f"critic.enable={config.critic.enable!r} must be true, false or null (on when the estimator needs values)"
        )
