"""The settings of rollout correction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from shared_algos.errors import AlgorithmError
from shared_algos.rollout_correction.rejection import Rule, parse_rules
from shared_algos.rollout_correction.thresholds import Bounds, check_choice, parse_bounds

WEIGHT_LEVELS = ("token", "sequence")
LOSS_TYPES = ("ppo_clip", "reinforce")


@dataclass(frozen=True)
class RolloutCorrectionConfig:
    """``algorithm.rollout_correction.*``, with verl's names and the defaults of its YAML.

    Checked when it is made: ``AlgorithmError`` names the field, its value and what is allowed.
    """

    rollout_is: str | None = None
    """Importance weights: ``token`` (one a token), ``sequence`` (the product of a row's) or none."""
    rollout_is_threshold: str | float = 2.0
    """A number: weights are cut to it (truncated importance sampling). ``"lower_upper"``: weights outside become 0
    (IcePop)."""
    rollout_is_batch_normalize: bool = False
    """Whether weights are divided by their mean."""
    rollout_rs: str | None = None
    """Rejection: one of ``REJECTION_MODES`` or a comma list of them; a token stays if all of them keep it."""
    rollout_rs_threshold: str | float | None = None
    """One threshold for all modes or a comma list, one a mode. ``*_k1``: ``"lower_upper"`` bounds of the ratio rollout
    over training probability, the lower one the reciprocal of the upper where it is left out. ``*_k2``, ``*_k3``:
    the largest divergence that is kept."""
    bypass_mode: bool = False
    """Whether the rollout log-probs take the place of the old ones, so that the policy loss corrects against them."""
    loss_type: str = "ppo_clip"
    """The loss of bypass mode, one of ``LOSS_TYPES``."""

    def __post_init__(self) -> None:
        if self.rollout_is is not None:
            check_choice("rollout_is", self.rollout_is, WEIGHT_LEVELS, "null, ")
        check_choice("loss_type", self.loss_type, LOSS_TYPES)
        for field in ("rollout_is_batch_normalize", "bypass_mode"):
            if not isinstance(getattr(self, field), bool):
                raise AlgorithmError(f"{field} is {getattr(self, field)!r}; it must be true or false")
        _ = self.weight_bounds, self.rules

    @cached_property
    def weight_bounds(self) -> Bounds:
        """``rollout_is_threshold``, read."""
        return parse_bounds(
            "rollout_is_threshold",
            self.rollout_is_threshold,
            "a positive number, to which weights are cut, or 'lower_upper' such as '0.5_5.0', outside of which they "
            "become 0",
        )

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """``rollout_rs`` and ``rollout_rs_threshold``, read; empty where nothing is rejected."""
        return () if self.rollout_rs is None else parse_rules(self.rollout_rs, self.rollout_rs_threshold)
