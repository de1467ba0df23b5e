"""Values of older versions of verl that mean something else now, or are written otherwise.

Only what has one certain meaning is converted. What a conversion leaves alone is judged under its own name, and where
that name is gone, ``known_keys.tsv`` refuses it with the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from runtime.errors import ConfigError

Values = Mapping[str, Any]
"""Values of dotted keys."""

ROLES = ("actor_rollout_ref.actor", "critic")
MODE = "actor_rollout_ref.rollout.mode"
CORRECTION = "algorithm.rollout_correction"
REJECTION, BOUNDS, LOWER = (f"{CORRECTION}.rollout_rs{end}" for end in ("", "_threshold", "_threshold_lower"))
REJECTION_MODES = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
"""Rejection up to verl 0.7.0, and the mode with the same statistic."""
OLD_WEIGHTS = "algorithm.rollout_is"
OLD_VETO = 0.0001
"""The default of ``algorithm.rollout_is_veto_threshold`` in verl 0.6.0."""


@dataclass(frozen=True)
class Conversion:
    """One rule: what its keys hold in a config becomes what they, or others, are to hold."""

    keys: tuple[str, ...]
    """The keys that it reads. Those that the result does not name are removed."""
    convert: Callable[[Values], Values | None]
    """From the values of those keys that are there to the values to set; None: nothing here is of an old version."""
    reason: str
    beside: tuple[str, ...] = ()
    """Keys that it reads too, where they are there, and that stay as they are."""


def convert_mode(old: Values) -> Values | None:
    """``rollout.mode=sync`` became ``async``; verl removed the former in 0.7, and both trainers wait for each step.

    >>> convert_mode({"actor_rollout_ref.rollout.mode": "sync"})
    {'actor_rollout_ref.rollout.mode': 'async'}
    """
    return {MODE: "async"} if old[MODE] == "sync" else None


def convert_contents(role: str, old: Values) -> Values:
    """``checkpoint.contents`` of verl 0.4.0 said both what is saved and what is loaded; null says neither."""
    contents = old[f"{role}.checkpoint.contents"]
    if contents is None:
        return {}
    return {f"{role}.checkpoint.{action}_contents": contents for action in ("save", "load")}


def convert_policy_gradient(old: Values) -> Values:
    """``use_policy_gradient`` of verl 0.6.1 chose the loss of bypass mode. Raises ``ConfigError`` if it is no bool."""
    key = f"{CORRECTION}.use_policy_gradient"
    if old[key] is None:
        return {}
    if not isinstance(old[key], bool):
        raise ConfigError(f"{key}={old[key]!r} must be true or false; it is {CORRECTION}.loss_type now")
    return {f"{CORRECTION}.loss_type": "reinforce" if old[key] else "ppo_clip"}


def convert_rejection(old: Values) -> Values | None:
    """Rejection up to verl 0.7.0: other names, and bounds of the inverse ratio (training over rollout probability).

    Raises ``ConfigError`` where a bound is missing or is no number above 0.

    >>> bounds = {BOUNDS: 4.0, LOWER: 0.2}
    >>> list(convert_rejection({REJECTION: "geometric", **bounds}).values())
    ['seq_mean_k1', '0.25_5.0']
    """
    mode, lower = old.get(REJECTION), old.get(LOWER)
    upper: Any = old.get(BOUNDS)
    if not isinstance(mode, str) or mode not in REJECTION_MODES:
        was_converted = lower is not None and isinstance(upper, str) and upper.endswith(f"_{_inverse(LOWER, lower)}")
        return {key: old[key] for key in (REJECTION, BOUNDS)} if was_converted else None
    below, above = _inverse(BOUNDS, upper), None if lower is None else _inverse(LOWER, lower)
    return {REJECTION: REJECTION_MODES[mode], BOUNDS: f"{below}_{float(upper) if above is None else above}"}


def _inverse(key: str, bound: Any) -> float:
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < float("inf"):
        raise ConfigError(
            f"{key}={bound!r} must be a number above 0 beside {REJECTION} of verl up to 0.7.0 (token, sequence, "
            f"geometric); or write what it became: {REJECTION}=token_k1, seq_sum_k1 or seq_mean_k1 with "
            f"{BOUNDS}='lower_upper' of rollout over training probability"
        )
    return 1 / float(bound)


def convert_weights(old: Values) -> Values | None:
    """Truncated importance weights of verl 0.6.0 (``algorithm.rollout_is*``); all else there is left alone."""
    settings = {"": False, "_level": "token", "_mode": "truncate", "_threshold": None, "_threshold_lower": None}
    given = {end: old.get(f"{OLD_WEIGHTS}{end}", default) for end, default in settings.items()}
    veto = old.get(f"{OLD_WEIGHTS}_veto_threshold")
    truncates = given["_mode"] == "truncate" and given["_threshold_lower"] is None and veto in (None, OLD_VETO)
    if given[""] is not True or not truncates or given["_level"] not in ("token", "sequence"):
        return None
    if given["_threshold"] is None:
        return None
    return {f"{CORRECTION}.rollout_is": given["_level"], f"{CORRECTION}.rollout_is_threshold": given["_threshold"]}


def _contents_of(role: str) -> Conversion:
    return Conversion(
        (f"{role}.checkpoint.contents",), lambda old: convert_contents(role, old), "verl 0.4.1 split it in two"
    )


CONVERSIONS = (
    Conversion((MODE,), convert_mode, "both trainers wait for the rollout of each step"),
    *(_contents_of(role) for role in ROLES),
    Conversion((f"{CORRECTION}.use_policy_gradient",), convert_policy_gradient, "verl 0.7 named the loss"),
    Conversion(
        (REJECTION, BOUNDS, LOWER),
        convert_rejection,
        "verl 0.7.1 renamed the modes and bounds the inverse ratio, rollout over training probability",
    ),
    Conversion(
        tuple(
            f"{OLD_WEIGHTS}{end}"
            for end in ("", "_level", "_mode", "_threshold", "_threshold_lower", "_veto_threshold")
        ),
        convert_weights,
        "verl 0.6.1 moved it; sequences are not vetoed, as in verl since then unless asked for",
    ),
)
"""Applied in this order, before any key is judged."""


@cache
def is_converted(key: str) -> bool:
    """Whether a conversion reads ``key``."""
    return any(key in conversion.keys for conversion in CONVERSIONS)
