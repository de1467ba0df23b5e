"""The runs in which mutants are planted, each small and with something in it for every fault to change.

Most play recorded sessions with observations inside, because a response without any hides what a mask is for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from parity_tests.isolated.synthetic import Size, synthetic_feed
from parity_tests.matrix.axes import ACTOR, CORRECTION, ROLLOUT, Changes, derived

_BOTH_ROLES = {
    # One row a time, so that a mini-batch is split; two of them in a step, so that the second sees moved weights.
    **{f"{role}.ppo_micro_batch_size_per_gpu": 1 for role in (ACTOR, "critic")},
    # What the reference can judge within 1e-5.
    **{f"{role}.optim.lr": 1e-4 for role in (ACTOR, "critic")},
    f"{ROLLOUT}.temperature": 0.7,
}

_PPO: Changes = {
    **_BOTH_ROLES,
    "algorithm.adv_estimator": "gae",
    "algorithm.gamma": 0.99,
    "algorithm.lam": 0.9,
    # Bounds within what one update moves a ratio, and different ones.
    f"{ACTOR}.clip_ratio_low": 1e-3,
    f"{ACTOR}.clip_ratio_high": 3e-3,
    "critic.cliprange_value": 1e-3,
}

SETTINGS: Mapping[str, Changes] = {
    "ppo": _PPO,
    "pf_ppo": {**_PPO, "algorithm.use_pf_ppo": True},
    "grpo": {**_BOTH_ROLES, "algorithm.adv_estimator": "grpo", f"{ACTOR}.grad_clip": 0.05},
    "kl": {
        **_BOTH_ROLES,
        "algorithm.adv_estimator": "grpo",
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_penalty": "low_var_kl",
        f"{ACTOR}.use_kl_loss": True,
        f"{ACTOR}.entropy_coeff": 0.01,
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
        f"{ACTOR}.ppo_epochs": 2,
        f"{ACTOR}.shuffle": True,
        f"{ACTOR}.optim.lr": 1e-2,
        f"{ACTOR}.optim.lr_scheduler_type": "cosine",
        f"{CORRECTION}.rollout_is": "token",
        f"{CORRECTION}.rollout_rs": "token_k1",
        f"{CORRECTION}.rollout_rs_threshold": "0.7_1.4",
    },
}
"""All but ``kl`` are what the reference covers; that one has everything else, and the golden baseline alone."""

STEPS: Mapping[str, int] = {"ppo": 1, "pf_ppo": 1, "grpo": 1, "kl": 2}
"""Two where a fault shows once the policy is no longer its reference."""

SAMPLED = "grpo"
"""The setting whose sessions are played by the model; the others have theirs recorded."""

_SESSIONS = Size(prompts=8)
_SEED = 11


def setting_config(name: str, folder: Path, ranks: int) -> DictConfig:
    """The config of a setting; its data is written to ``folder``, as a file that both trainers read."""
    changes: dict[str, Any] = {**SETTINGS[name], "trainer.n_gpus_per_node": ranks, "data.shuffle": False}
    if name != SAMPLED:
        changes["data.train_files"] = str(recorded_sessions(folder / "sessions.jsonl"))
    return derived(changes)


def recorded_sessions(path: Path) -> Path:
    """Write a data file of made-up sessions with observations, log-probs and scores, for ``replay_agent``."""
    batch = synthetic_feed("ragged", _SEED, _SESSIONS).before("old_log_prob")
    columns = {name: batch.responses.split(batch[name]) for name in ("responses", "response_mask", "rollout_log_probs")}
    scores = batch.responses.sum(batch["rm_scores"]).tolist()
    sessions = [
        {
            "prompt_ids": prompt.tolist(),
            "response_ids": columns["responses"][row].tolist(),
            "response_mask": columns["response_mask"][row].tolist(),
            "response_logprobs": columns["rollout_log_probs"][row].tolist(),
            "reward_score": scores[row],
        }
        for row, prompt in enumerate(batch.prompts.split(batch["prompts"]))
    ]
    n = _SESSIONS.sessions
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(_row(p, sessions[p * n : p * n + n])) for p in range(_SESSIONS.prompts)))
    return path


def _row(number: int, sessions: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "data_source": "recorded",
        "prompt": [{"role": "user", "content": f"prompt {number}"}],
        "reward_model": {"style": "rule", "ground_truth": ""},
        "agent_name": "replay_agent",
        "extra_info": {"index": number, "sessions": sessions},
    }
