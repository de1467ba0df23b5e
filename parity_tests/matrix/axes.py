"""The axes of the matrix and which of their values refuse each other. A new axis, or a new value, joins by one line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from parity_tests.isolated.synthetic import COMPONENTS, SHAPES, Size
from runtime.config import load_config
from runtime.config.validate import validate
from shared_algos.advantages import ADVANTAGES
from shared_algos.aggregation import AGGREGATIONS
from shared_algos.policy_losses import POLICY_LOSSES

Changes = Mapping[str, Any]
"""Config keys and their values."""

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
CORRECTION, LOSS = "algorithm.rollout_correction", "actor_rollout_ref.actor.policy_loss"

SIZE = Size()
MINI_BATCH_PROMPTS = 2

BASE: Changes = {
    "data.train_batch_size": SIZE.prompts,
    "data.max_prompt_length": SIZE.prompt_limit,
    "data.max_response_length": SIZE.response_limit,
    f"{ROLLOUT}.n": SIZE.sessions,
    f"{ACTOR}.ppo_mini_batch_size": MINI_BATCH_PROMPTS,
    "runtime.torch_threads": 1,
    "trainer.logger": ["jsonl"],
    # Nobody sees the console of a cell, and the coefficient must show in a float32 sum.
    f"{ACTOR}.kl_loss_coef": 0.1,
    "algorithm.kl_ctrl.kl_coef": 0.1,
}

NEEDS_MORE: Mapping[str, Changes] = {
    "gdpo": {"algorithm.gdpo_reward_keys": list(COMPONENTS), "algorithm.gdpo_reward_weights": [1.0, 0.5]},
    # One token in five of a mini-batch of a hundred, so that the loss has some to select.
    "clip_cov": {f"{LOSS}.clip_cov_ratio": 0.2, f"{LOSS}.clip_cov_lb": 0.0},
    "kl_cov": {f"{LOSS}.kl_cov_ratio": 0.2, f"{LOSS}.ppo_kl_coef": 1.0},
    "dro": {f"{LOSS}.dro_beta": 0.1},
    "bypass_mode": {
        f"{CORRECTION}.bypass_mode": True,
        f"{CORRECTION}.loss_type": "reinforce",
        f"{CORRECTION}.rollout_is": "token",
        f"{CORRECTION}.rollout_is_threshold": "0.8_1.2",
        f"{CORRECTION}.rollout_is_batch_normalize": True,
        f"{CORRECTION}.rollout_rs": "seq_mean_k3",
        f"{CORRECTION}.rollout_rs_threshold": 0.5,
    },
}
"""What a name needs beside itself, or to have something to do on so small a batch."""


def _losses() -> dict[str, Changes]:
    named = {name: {f"{LOSS}.loss_mode": name, **NEEDS_MORE.get(name, {})} for name in POLICY_LOSSES.names()}
    # The correction chooses it, not the name.
    return {**named, "bypass_mode": NEEDS_MORE["bypass_mode"]}


def _micro_batches(rows: int | None, tokens: int | None) -> Changes:
    passes = {
        ACTOR: ("ppo_micro_batch_size_per_gpu", "use_dynamic_bsz", "ppo_max_token_len_per_gpu"),
        ROLLOUT: ("log_prob_micro_batch_size_per_gpu", "log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu"),
        REF: ("log_prob_micro_batch_size_per_gpu", "log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu"),
        "critic": ("ppo_micro_batch_size_per_gpu", "use_dynamic_bsz", "ppo_max_token_len_per_gpu"),
    }
    changes: dict[str, Any] = {}
    for role, (size, dynamic, budget) in passes.items():
        changes |= {f"{role}.{size}": rows, f"{role}.{dynamic}": tokens is not None}
        changes |= {f"{role}.{budget}": tokens} if tokens is not None else {}
    forward = {"critic.forward_micro_batch_size_per_gpu": rows}
    return {**changes, **forward} if tokens is None else {**changes, "critic.forward_max_token_len_per_gpu": tokens}


AXES: Mapping[str, Mapping[str, Changes]] = {
    "estimator": {name: {"algorithm.adv_estimator": name, **NEEDS_MORE.get(name, {})} for name in ADVANTAGES.names()},
    "loss": _losses(),
    "aggregation": {mode: {f"{ACTOR}.loss_agg_mode": mode} for mode in AGGREGATIONS},
    "shape": {name: {} for name in SHAPES},
    # Two rows do not divide a rank's share of a mini-batch, and 96 tokens are two of the longest sequences.
    "micro_batch": {"rows": _micro_batches(2, None), "tokens": _micro_batches(None, 96)},
    "ranks": {str(ranks): {"trainer.n_gpus_per_node": ranks} for ranks in (1, 2)},
    "layout": {
        name: {"actor_rollout_ref.model.use_remove_padding": packed, "critic.model.use_remove_padding": packed}
        for name, packed in (("packed", True), ("padded", False))
    },
    "kl": {"none": {}, "reward": {"algorithm.use_kl_in_reward": True}, "loss": {f"{ACTOR}.use_kl_loss": True}},
    "dtype": {
        name: {f"{ACTOR}.fsdp_config.dtype": name, f"{REF}.fsdp_config.dtype": name, "critic.fsdp.dtype": name}
        for name in ("float32", "bfloat16")
    },
}
"""The config of each value of each axis; ``shape`` is the one axis that is about the batch."""


@dataclass(frozen=True)
class Rule:
    """Values that refuse each other: a cell that holds them is expected to raise ``refusal``, on both sides alike.

    when: values by axis, all of which a cell has. stage: where the refusal comes; ``config``: when it is read.
    """

    when: Mapping[str, str]
    refusal: str
    stage: str = "config"

    def holds(self, cell: Mapping[str, str]) -> bool:
        """Whether ``cell``, or a part of one, has all of these values."""
        return all(cell.get(axis) == value for axis, value in self.when.items())

    def matches(self, message: str) -> bool:
        """Whether ``message`` is the one that is expected."""
        return re.search(self.refusal, message) is not None


RULES: tuple[Rule, ...] = (
    *(
        Rule({"estimator": name, "loss": "bypass_mode"}, f"{name} needs 'sum_pi_squared'.*bypass_mode=false")
        for name in ("optimal_token_baseline", "tir_optimal_token_baseline")
    ),
    Rule(
        {"estimator": "grpo_passk", "shape": "lone_survivor"},
        "grpo_passk needs 2 sessions or more in a group, and .* is alone",
        stage="advantage",
    ),
)


def fits(cell: Mapping[str, str]) -> bool:
    """Whether no rule says that values of ``cell`` refuse each other."""
    return not any(rule.holds(cell) for rule in RULES)


def config_of(cell: Mapping[str, str]) -> DictConfig:
    """The config of a cell. Raises the ``ConfigError`` with which it is refused."""
    changes: dict[str, Any] = {}
    for axis, value in cell.items():
        changes |= AXES[axis][value]
    return derived(changes)


def derived(changes: Changes) -> DictConfig:
    """The ``tiny`` config with ``BASE`` and ``changes``, checked as ``load_config`` does, in a tenth of the time."""
    config = _base().copy()
    for key, value in changes.items():
        OmegaConf.update(config, key, value)
    validate(config, [])
    OmegaConf.set_readonly(config, True)
    return config


@cache
def _base() -> DictConfig:
    config = load_config("tiny").config
    OmegaConf.set_readonly(config, False)
    for key, value in BASE.items():
        OmegaConf.update(config, key, value)
    return config
