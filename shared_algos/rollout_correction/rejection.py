"""Rejection: tokens or whole rows on which the two policies differ too much leave the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shared_algos.errors import AlgorithmError
from shared_algos.rollout_correction.pairs import Pairs
from shared_algos.rollout_correction.statistics import extremes, mean, row_means, summary, token_mean, token_std
from shared_algos.rollout_correction.thresholds import check_choice, parse_bounds, split_list
from shared_algos.segments import Segments

REJECTION_MODES = (
    *(f"{level}_{estimator}" for level in ("token", "seq_sum", "seq_mean") for estimator in ("k1", "k2", "k3")),
    *("seq_max_k2", "seq_max_k3"),
)


@dataclass(frozen=True)
class Rule:
    """One mode with its bounds: what lies outside is rejected."""

    mode: str
    """One of ``REJECTION_MODES``."""
    lower: float | None
    """Of the statistic; ``None`` where only large values are rejected."""
    upper: float

    @property
    def level(self) -> str:
        """``token``, or how a row's tokens become one statistic: ``seq_sum``, ``seq_mean`` or ``seq_max``."""
        return self.mode[:-3]

    def keeps(self, statistic: Tensor) -> Tensor:
        """Whether each value lies inside the bounds, bool."""
        kept = statistic <= self.upper
        return kept if self.lower is None else kept & (statistic >= self.lower)


def parse_rules(modes: Any, thresholds: Any) -> tuple[Rule, ...]:
    """Read ``rollout_rs`` and ``rollout_rs_threshold``; a mode that comes twice counts once.

    Raises ``AlgorithmError`` for an unknown mode, naming the nearest, for a threshold that is missing or of the wrong
    form, and for a number of thresholds that is neither 1 nor that of the modes.
    """
    names = list(dict.fromkeys(split_list(modes))) if isinstance(modes, str) else []
    for name in names or [modes]:
        check_choice("rollout_rs", name, REJECTION_MODES, "null, a comma list, ")
    if thresholds is None:
        raise AlgorithmError(f"rollout_rs is {modes!r} and rollout_rs_threshold is null; set one threshold a mode")
    values = split_list(thresholds)
    if len(values) not in (1, len(names)):
        raise AlgorithmError(
            f"rollout_rs_threshold {thresholds!r} has {len(values)} values for the {len(names)} modes of rollout_rs "
            f"{modes!r}; give one for all or {len(names)}"
        )
    return tuple(map(_rule, names, values * len(names) if len(values) == 1 else values))


def _rule(mode: str, threshold: Any) -> Rule:
    field = f"rollout_rs_threshold of {mode}"
    if not mode.endswith("k1"):
        meaning = "a positive number, the largest divergence that is kept; only *_k1 has two bounds"
        bounds = parse_bounds(field, threshold, meaning)
        if bounds.lower is not None:
            raise AlgorithmError(f"{field} is {threshold!r}; it must be {meaning}")
        return Rule(mode, None, bounds.upper)
    meaning = "'lower_upper', bounds of the ratio rollout over training probability, such as '0.5_2.0'"
    bounds = parse_bounds(field, threshold, meaning)
    upper = math.log(bounds.upper)
    if bounds.lower is not None:
        return Rule(mode, math.log(bounds.lower), upper)
    if not 0 <= upper < math.inf:
        raise AlgorithmError(
            f"{field} is {threshold!r}; it must be {meaning}, or one finite number from 1, whose reciprocal is the "
            "lower bound"
        )
    return Rule(mode, -upper, upper)


def reject(pairs: Pairs, rules: tuple[Rule, ...]) -> tuple[Tensor, dict[str, float]]:
    """Which tokens all rules keep, bool ``[N]``, and metrics ``rollout_rs_*``.

    Follows verl's ``compute_rollout_rejection_mask``: k1 is minus the log-ratio, k2 half its square, k3 the ratio less
    1 less its log, each of log-ratios cut to +-20; a row's statistic decides about all of its tokens.
    """
    estimates = _estimates(pairs.log_ratio.clamp(-20, 20))
    kept = torch.ones_like(pairs.tokens, dtype=torch.bool)
    metrics: dict[str, float] = {}
    for rule in rules:
        statistic = _over_rows(estimates[rule.mode[-2:]], pairs.rows, rule.level)
        kept_here = rule.keeps(statistic)
        if rule.level == "token":
            metrics |= _token_metrics(rule, statistic, pairs.rows)
        else:
            metrics |= _row_metrics(rule, statistic, pairs.rows)
            kept_here = pairs.rows.spread(kept_here)
        metrics |= _masked_fractions(f"rollout_rs_{rule.mode}", kept_here, pairs.rows)
        kept &= kept_here
    return kept, metrics | _masked_fractions("rollout_rs", kept, pairs.rows)


def _estimates(log_ratio: Tensor) -> dict[str, Tensor]:
    # expm1, as exp(x) - 1 has no digit left of the statistic where the policies are close.
    return {"k1": -log_ratio, "k2": 0.5 * log_ratio.square(), "k3": torch.expm1(log_ratio) - log_ratio}


def _over_rows(values: Tensor, rows: Segments, level: str) -> Tensor:
    """The statistic of each token ``[N]`` or row ``[L]``."""
    if level == "seq_sum":
        return rows.sum(values)
    if level == "seq_mean":
        return row_means(values, rows)
    return torch.segment_reduce(values, "max", offsets=rows.offsets) if level == "seq_max" else values


def _masked_fractions(prefix: str, kept: Tensor, rows: Segments) -> dict[str, float]:
    """The share of tokens, and of rows with a token, that are rejected."""
    return {
        f"{prefix}_masked_fraction": token_mean(~kept, rows),
        f"{prefix}_seq_masked_fraction": mean(rows.sum(~kept) > 0),
    }


def _token_metrics(rule: Rule, statistic: Tensor, rows: Segments) -> dict[str, float]:
    """Of one value a token, ``[N]``."""
    prefix = f"rollout_rs_{rule.mode}"
    high, low = statistic > rule.upper, statistic < (-math.inf if rule.lower is None else rule.lower)
    return _level_metrics(rule, statistic, rows) | {
        **extremes(prefix, statistic),
        f"{prefix}_fraction_high": token_mean(high, rows),
        f"{prefix}_fraction_low": token_mean(low, rows),
        **_of_rows(rule, row_means(statistic, rows)),
    }


def _row_metrics(rule: Rule, statistic: Tensor, rows: Segments) -> dict[str, float]:
    """Of one value a row, ``[L]``; mean and std weigh a row by its tokens."""
    prefix = f"rollout_rs_{rule.mode}"
    of_rows = _of_rows(rule, statistic)
    return _level_metrics(rule, rows.spread(statistic), rows) | {
        **extremes(prefix, statistic),
        f"{prefix}_fraction_high": of_rows[f"{prefix}_seq_fraction_high"],
        f"{prefix}_fraction_low": of_rows.get(f"{prefix}_seq_fraction_low", 0.0),
        **of_rows,
    }


def _level_metrics(rule: Rule, statistic: Tensor, rows: Segments) -> dict[str, float]:
    """Mean over tokens, and std over tokens of what lies inside the bounds or is cut to them."""
    cut = statistic.clamp(0.0 if rule.lower is None else rule.lower, rule.upper)
    prefix = f"rollout_rs_{rule.mode}"
    return {f"{prefix}_mean": token_mean(statistic, rows), f"{prefix}_std": token_std(cut, rows)}


def _of_rows(rule: Rule, values: Tensor) -> dict[str, float]:
    """Of one value a row, ``[L]``, each row counting once."""
    prefix = f"rollout_rs_{rule.mode}_seq"
    metrics = summary(prefix, values, ideal=0) | {f"{prefix}_fraction_high": mean(values > rule.upper)}
    return metrics if rule.lower is None else metrics | {f"{prefix}_fraction_low": mean(values < rule.lower)}
