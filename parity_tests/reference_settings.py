"""What the reference step needs of a config, and which configs it covers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.errors import CaptureError

_MODEL, _ACTOR, _CRITIC = "actor_rollout_ref.model", "actor_rollout_ref.actor", "critic"
_UPDATE: dict[str, tuple[Any, ...]] = {
    "shuffle": (False,),
    "loss_agg_mode": ("token-mean",),
    "optim.lr_scheduler_type": ("constant",),
    "optim.lr_warmup_steps": (None, -1, 0),
    "optim.lr_warmup_steps_ratio": (0.0,),
}
_FLOAT32 = ("float32", "fp32")
_COVERED: dict[str, tuple[Any, ...]] = {
    "algorithm.adv_estimator": ("gae", "grpo"),
    "algorithm.use_kl_in_reward": (False,),
    **{f"algorithm.rollout_correction.{key}": (None,) for key in ("rollout_is", "rollout_rs")},
    "algorithm.rollout_correction.bypass_mode": (False,),
    "trainer.critic_warmup": (0,),
    f"{_MODEL}.override_config": ({},),
    f"{_ACTOR}.policy_loss.loss_mode": ("vanilla",),
    f"{_ACTOR}.entropy_coeff": (0.0,),
    f"{_ACTOR}.use_kl_loss": (False,),
    f"{_ACTOR}.fsdp_config.dtype": _FLOAT32,
    f"{_ACTOR}.fsdp_config.model_dtype": _FLOAT32,
    **{f"{_ACTOR}.{key}": values for key, values in _UPDATE.items()},
}
_COVERED_CRITIC: dict[str, tuple[Any, ...]] = {
    f"{_CRITIC}.model.override_config": ({},),
    f"{_CRITIC}.fsdp.dtype": _FLOAT32,
    f"{_CRITIC}.fsdp.model_dtype": _FLOAT32,
    **{f"{_CRITIC}.{key}": values for key, values in _UPDATE.items()},
}


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of ``reference_step`` as one plain dict, read off a capture's resolved config.

    Raises CaptureError naming the key when the config asks for what the reference does not compute.
    """
    with_critic = value_at(config, "algorithm.adv_estimator") == "gae"
    _check(config, _COVERED | {"critic.enable": (None, with_critic)})
    if with_critic:
        _check(config, _COVERED_CRITIC | {"critic.model.path": (value_at(config, f"{_MODEL}.path"),)})
    actor, estimator = value_at(config, _ACTOR), ("adv_estimator", "gamma", "lam", "norm_adv_by_std_in_grpo")
    return {
        **{name: value_at(config, f"algorithm.{name}") for name in estimator},
        "temperature": value_at(config, "actor_rollout_ref.rollout.temperature"),
        "seed": value_at(config, "runtime.seed"),
        "actor": {
            **_update_settings(config, actor),
            "clip": (_clip_ratio(actor, "low"), _clip_ratio(actor, "high"), value_at(actor, "clip_ratio_c")),
        },
        "critic": {
            **_update_settings(config, value_at(config, _CRITIC)),
            "clip": value_at(config, f"{_CRITIC}.cliprange_value"),
        },
    }


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """The value under a dotted key. Raises CaptureError naming a key that is not there."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise CaptureError(
                f"the capture's config has no {key}, which the reference reads; capture a run of verlift"
            )
        value = value[part]
    return value


def _check(config: Mapping[str, Any], covered: Mapping[str, tuple[Any, ...]]) -> None:
    for key, values in covered.items():
        given = value_at(config, key)
        if given not in values:
            known = " or ".join(map(repr, values))
            raise CaptureError(f"the reference covers {key}={known}, not {given!r}; capture a run with that")


def _update_settings(config: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of a mini-batch, epochs, clipping and AdamW's numbers; eps is torch's default where none is given."""
    return {
        "rows": value_at(group, "ppo_mini_batch_size") * value_at(config, "actor_rollout_ref.rollout.n"),
        "epochs": value_at(group, "ppo_epochs"),
        "grad_clip": value_at(group, "grad_clip"),
        "lr": float(value_at(group, "optim.lr")),
        "betas": tuple(value_at(group, "optim.betas")),
        "weight_decay": value_at(group, "optim.weight_decay"),
        "eps": (value_at(group, "optim.override_optimizer_config") or {}).get("eps", 1e-8),
    }


def _clip_ratio(actor: Mapping[str, Any], side: str) -> float:
    given = value_at(actor, f"clip_ratio_{side}")
    return value_at(actor, "clip_ratio") if given is None else given
