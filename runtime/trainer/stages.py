"""Which stages a config asks for, and what they write."""

from __future__ import annotations

from omegaconf import DictConfig

from runtime.config import uses_critic, uses_reference
from runtime.fields import STAGE_NAMES, STAGES


def configured_stages(config: DictConfig) -> tuple[str, ...]:
    """The stages of ``runtime.fields.STAGES`` that run, in order."""
    left_out = set()
    if not config.trainer.balance_batch:
        left_out.add("balance")
    if not uses_reference(config):
        left_out.add("ref_log_prob")
    if not uses_critic(config):
        left_out |= {"values", "update_critic"}
    return tuple(stage for stage in STAGE_NAMES if stage not in left_out)


def written_fields(stage: str, config: DictConfig) -> tuple[str, ...]:
    """The fields that ``stage`` writes under ``config``; none for a name that is not a stage."""
    absent = set() if config.actor_rollout_ref.rollout.calculate_log_probs else {"rollout_log_probs"}
    for known in STAGES:
        if known.name == stage:
            return (*known.writes, *(name for name in known.may_write if name not in absent))
    return ()
