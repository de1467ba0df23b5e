"""The vocabulary of both trainers: which stages there are, what each writes, and over which tokens a field runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """What one value of a field belongs to."""

    PROMPT = "prompt"
    """A prompt token: packed ``[sum of prompt lengths]``."""
    RESPONSE = "response"
    """A response token: packed ``[T]``."""
    SEQUENCE = "sequence"
    """A token of prompt + response: packed ``[S]``."""
    ROW = "row"
    """A trajectory: ``[B]``."""


LEVELS: dict[str, Level] = {
    "prompts": Level.PROMPT,
    "responses": Level.RESPONSE,
    "response_mask": Level.RESPONSE,
    "rollout_log_probs": Level.RESPONSE,
    "rm_scores": Level.RESPONSE,
    "token_level_scores": Level.RESPONSE,
    "token_level_rewards": Level.RESPONSE,
    "old_log_probs": Level.RESPONSE,
    "entropy": Level.RESPONSE,
    "sum_pi_squared": Level.RESPONSE,
    "ref_log_prob": Level.RESPONSE,
    "values": Level.RESPONSE,
    "advantages": Level.RESPONSE,
    "returns": Level.RESPONSE,
    "rollout_is_weights": Level.RESPONSE,
    "selected": Level.RESPONSE,
    "input_ids": Level.SEQUENCE,
    "position_ids": Level.SEQUENCE,
    "num_turns": Level.ROW,
    "reward_baselines": Level.ROW,
}
"""Every tensor field of a trajectory and its level. A field that is not here is a dataset object, one a row."""

CARRIERS = frozenset({"submission", "session_id"})
"""Objects that a batch brings along for itself: what they say is in its trajectory keys and its other objects."""


ALIASES: dict[str, str] = {"loss_mask": "response_mask", "entropys": "entropy"}
"""Other names of a field, as old code spells them. They resolve to the one column, so they cannot disagree with it."""


@dataclass(frozen=True)
class Stage:
    """One step of the pipeline, the same in both trainers.

    writes: fields that the stage always writes. may_write: fields it writes only when configured.
    """

    name: str
    writes: tuple[str, ...] = ()
    may_write: tuple[str, ...] = ()


STAGES: tuple[Stage, ...] = (
    Stage(
        "rollout",
        writes=("prompts", "responses", "input_ids", "position_ids", "response_mask", "num_turns"),
        may_write=("rollout_log_probs", "rm_scores", "reward_baselines"),
    ),
    Stage("reward", writes=("rm_scores", "token_level_scores")),
    Stage("balance"),
    Stage("old_log_prob", writes=("old_log_probs",), may_write=("entropy", "sum_pi_squared")),
    Stage("ref_log_prob", writes=("ref_log_prob",)),
    Stage("values", writes=("values",)),
    Stage(
        "advantage",
        writes=("token_level_rewards", "advantages", "returns", "response_mask"),
        may_write=("rollout_is_weights",),
    ),
    Stage("resample"),
    Stage("update_critic"),
    Stage("update_actor"),
)
"""The stages in the order in which both trainers run them; a trainer leaves out what is not configured."""

STAGE_NAMES: tuple[str, ...] = tuple(stage.name for stage in STAGES)

REARRANGING = frozenset({"balance", "resample"})
"""Stages that write nothing: which rows stand where is all that they make."""
