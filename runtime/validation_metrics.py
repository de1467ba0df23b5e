"""Figures of validation: of n answers to each prompt the mean, the best, the worst and the majority's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

N_BOOTSTRAP = 1000
"""Subsets that are drawn for each figure, as in verl."""

Figures = dict[str, dict[str, dict[str, float]]]
"""By data source, variable and figure, such as ``mean@4`` or ``best@2/std``."""


def bootstrap_metric(
    data: Sequence[Any],
    subset_size: int,
    reduce_fns: Sequence[Callable[[np.ndarray], float]],
    n_bootstrap: int = N_BOOTSTRAP,
    seed: int = 42,
) -> list[tuple[float, float]]:
    """Mean and standard deviation of each function over ``n_bootstrap`` subsets drawn with replacement.

    The subsets are those of verl, which seeds numpy's global generator; here that one is left alone.
    """
    values = np.empty(len(data), dtype=object)
    values[:] = list(data)
    subsets = values[_draws(len(data), subset_size, n_bootstrap, seed)]
    results = [np.array([function(subset) for subset in subsets], dtype=np.float64) for function in reduce_fns]
    return [(float(result.mean()), float(result.std())) for result in results]


def calc_maj_val(data: Sequence[Mapping[str, Any]], vote_key: str, val_key: str) -> float:
    """The value of the first item that voted with the majority; of equally many votes the first to appear wins."""
    votes = [item[vote_key] for item in data]
    winner = Counter(votes).most_common(1)[0][0]
    value: float = data[votes.index(winner)][val_key]
    return value


def process_validation_metrics(
    data_sources: Sequence[str],
    sample_uids: Sequence[str] | None = None,
    infos_dict: Mapping[str, Sequence[Any]] | None = None,
    seed: int = 42,
    expected_acc_counts: Mapping[tuple[str, str], int] | None = None,
    sample_inputs: Sequence[str] | None = None,
) -> Figures:
    """Figures of each variable by data source: means over prompts of each prompt's figures.

    data_sources, sample_uids: of each sample (up to verl 0.4 the prompts' text, ``sample_inputs``). infos_dict:
    variables, one value a sample; text and ``None`` are left out, and ``pred`` is what a majority votes by.
    expected_acc_counts: sessions that should be there of each (data source, uid); a missing one is an ``acc`` of 0, and
    ``acc_success_only`` is the figure without it.
    """
    uids, infos = sample_inputs if sample_uids is None else sample_uids, infos_dict or {}
    prompts: dict[str, dict[str, dict[str, list[Any]]]] = {}
    for sample, (source, uid) in enumerate(zip(data_sources, uids or (), strict=True)):
        variables = prompts.setdefault(source, {}).setdefault(uid, {name: [] for name in infos})
        for name, values in infos.items():
            variables[name].append(values[sample])
    for (source, uid), count in (expected_acc_counts or {}).items():
        if any(_numbers(variables.get("acc", ())) for variables in prompts.get(source, {}).values()):
            _count_missing(prompts[source].setdefault(uid, {}), count)
    return {source: _of_source(list(by_uid.values()), seed) for source, by_uid in prompts.items()}


def named_figures(figures: Figures, turns: np.ndarray) -> dict[str, float]:
    """``figures`` under the names that verl logs: ``val-core/`` for the mean, best and majority of all n answers.

    The variable of ``val-core`` is ``acc`` where there is one, else ``reward``; all else is ``val-aux/``.

    turns: of each session, ``[N]``; may be empty.
    """
    metrics: dict[str, float] = {}
    for source, variables in figures.items():
        core = "acc" if "acc" in variables else "reward"
        for variable, of_variable in variables.items():
            most = max(int(name.rpartition("@")[2].partition("/")[0]) for name in of_variable)
            for name, value in of_variable.items():
                is_core = variable == core and name.startswith(("mean", "maj", "best")) and f"@{most}" in name
                metrics[f"val-{'core' if is_core else 'aux'}/{source}/{variable}/{name}"] = value
    if len(turns):
        extremes = {"min": turns.min(), "max": turns.max(), "mean": turns.mean()}
        metrics |= {f"val-aux/num_turns/{name}": float(value) for name, value in extremes.items()}
    return metrics


def _count_missing(variables: dict[str, list[Any]], expected: int) -> None:
    there = _numbers(variables.get("acc", ()))
    variables["acc_success_only"] = there
    variables["acc"] = there + [0.0] * (expected - len(there))


def _of_source(prompts: list[dict[str, list[Any]]], seed: int) -> dict[str, dict[str, float]]:
    """The mean over prompts of each figure of each variable."""
    collected: dict[str, dict[str, list[float]]] = {}
    for variables in prompts:
        for name, values in variables.items():
            for figure, value in _of_prompt(_numbers(values), variables.get("pred"), seed).items():
                collected.setdefault(name, {}).setdefault(figure, []).append(value)
    return {
        name: {figure: float(np.mean(values)) for figure, values in figures.items()}
        for name, figures in collected.items()
    }


def _of_prompt(values: list[Any], votes: list[Any] | None, seed: int) -> dict[str, float]:
    """The figures of one variable of one prompt; none for text."""
    count = len(values)
    if not count or isinstance(values[0], str):
        return {}
    figures = {f"mean@{count}": float(np.mean(values))}
    if count == 1:
        return figures
    figures[f"std@{count}"] = float(np.std(values))
    voted = votes is not None and len(votes) == count and all(vote is not None for vote in votes)
    for n in _subset_sizes(count):
        subsets = np.array(values)[_draws(count, n, N_BOOTSTRAP, seed)]
        for name, extremes in (("best", subsets.max(axis=1)), ("worst", subsets.min(axis=1))):
            figures |= {f"{name}@{n}/mean": float(extremes.mean()), f"{name}@{n}/std": float(extremes.std())}
        if voted:
            ballots = [{"val": value, "pred": vote} for value, vote in zip(values, votes or (), strict=True)]
            majority = partial(calc_maj_val, vote_key="pred", val_key="val")
            [(mean, std)] = bootstrap_metric(ballots, n, [majority], seed=seed)
            figures |= {f"maj@{n}/mean": mean, f"maj@{n}/std": std}
    return figures


def _subset_sizes(count: int) -> list[int]:
    """2, 4, 8, ... below ``count``, and ``count``."""
    return [2**power for power in range(1, count.bit_length()) if 2**power < count] + [count]


def _draws(count: int, size: int, n_bootstrap: int, seed: int) -> np.ndarray:
    """Indices below ``count``, int64 ``[n_bootstrap, size]``, as numpy's legacy generator draws them."""
    return np.random.RandomState(seed).choice(count, size=(n_bootstrap, size), replace=True)


def _numbers(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if value is not None]
