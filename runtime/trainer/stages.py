"""Which stages a config asks for, and what they write."""

from __future__ import annotations

from collections.abc import Iterable

from omegaconf import DictConfig

from runtime.config import (
    bypasses_old_log_prob,
    corrects_rollout,
    plays_baseline,
    uses_critic,
    uses_reference,
    writes_sum_pi_squared,
)
from runtime.fields import CARRIERS, LEVELS, STAGE_NAMES, STAGES
from runtime.reward import scores_batches


def configured_stages(config: DictConfig) -> tuple[str, ...]:
    """The stages of ``runtime.fields.STAGES`` that run, in order."""
    left_out = set()
    if not config.trainer.balance_batch:
        left_out.add("balance")
    if not uses_reference(config):
        left_out.add("ref_log_prob")
    if not uses_critic(config):
        left_out |= {"values", "update_critic"}
    if not config.algorithm.use_pf_ppo:
        left_out.add("resample")
    return tuple(stage for stage in STAGE_NAMES if stage not in left_out)


def updates_actor(config: DictConfig, step: int) -> bool:
    """Whether the policy is updated in ``step`` (1, 2, ...): not while the critic warms up.

    As verl's ``fit``: the first update of the policy is in step ``trainer.critic_warmup``, so 0 and 1 mean the same.
    """
    return step >= config.trainer.critic_warmup


def written_fields(stage: str, config: DictConfig, there: Iterable[str] = ()) -> tuple[str, ...]:
    """The fields that ``stage`` writes under ``config``; none for a name that is not a stage.

    there: names of the fields that the batch holds. Its dataset objects (data files decide which there are) are
    written by ``rollout``, together with what an agent loop adds, such as ``reward_extra_info``; a manager of batches
    leaves that and ``rm_scores`` to ``reward``.
    """
    batched = scores_batches(config)
    asked_for = {
        "rm_scores": not batched,
        "rollout_log_probs": config.actor_rollout_ref.rollout.calculate_log_probs,
        "reward_baselines": plays_baseline(config),
        "entropy": not bypasses_old_log_prob(config),
        "sum_pi_squared": writes_sum_pi_squared(config),
        "rollout_is_weights": corrects_rollout(config),
    }
    objects = sorted(set(there) - LEVELS.keys() - CARRIERS) if stage == "rollout" else ()
    if batched and stage == "reward":
        objects = sorted({"reward_extra_info"} & set(there))
    for known in STAGES:
        if known.name == stage:
            return (*known.writes, *(name for name in known.may_write if asked_for.get(name, True)), *objects)
    return ()
