"""How an advantage estimator is registered, found by name and run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, TypeVar

import torch

from shared_algos.advantages.episodes import Episodes
from shared_algos.advantages.inputs import AdvantageConfig, AdvantageInputs, AdvantageOutputs
from shared_algos.advantages.outcomes import Outcomes
from shared_algos.errors import AlgorithmError, MissingInputError
from shared_algos.reductions import all_finite, masked
from shared_algos.registry import Entry, Level, Registry

ADVANTAGES: Registry[Callable[..., Any]] = Registry("advantage estimator")
Estimator = TypeVar("Estimator", bound=Callable[..., Any])


def register_advantage(
    *names: str,
    needs: Iterable[str] = (),
    outcome: bool = False,
    level: Level | None = None,
    reference: str = "",
    replace: bool = False,
) -> Callable[[Estimator], Estimator]:
    """Register an estimator under one or more names.

    With ``outcome`` it is ``(Outcomes, AdvantageConfig) -> advantages [S]``, one a session; without,
    ``(Episodes, AdvantageConfig) -> (advantages [N], returns [N])``, one a mask-1 token. Both compute in float64.
    With ``level=Level.BATCH`` it is ``(AdvantageInputs, AdvantageConfig) -> (advantages [T], returns [T])``, for
    functions that see the batch as it is.
    needs: optional fields of ``AdvantageInputs`` that must be there. Raises ``AlgorithmError`` for any other name,
    but at ``Level.BATCH``: there it is refused where a config chooses the estimator, so that a recipe may hold more of
    them than it runs.
    replace: see ``Registry.register``.
    """
    level = level or (Level.OUTCOME if outcome else Level.TOKEN)
    unknown = set(needs) - {field.name for field in fields(AdvantageInputs)}
    if unknown and level is not Level.BATCH:
        raise AlgorithmError(f"{names} needs {sorted(unknown)}, which AdvantageInputs does not have")
    return ADVANTAGES.register(*names, needs=needs, level=level, reference=reference, replace=replace)  # type: ignore[return-value]


@torch.no_grad()
def compute_advantages(
    name: str, inputs: AdvantageInputs, config: AdvantageConfig, dtype: torch.dtype = torch.float32
) -> AdvantageOutputs:
    """Advantages and returns of a whole batch, ``[T]``, 0 at mask-0 positions.

    dtype: what the float64 results are cast to at the end; float64 leaves them as they are.

    Raises ``UnknownAlgorithmError``, ``MissingInputError`` for an input that the estimator needs, and
    ``NonFiniteError`` naming the row where an input that takes part is infinite or NaN, or a result is.
    """
    outputs = run_estimator(ADVANTAGES.get(name), inputs, config, dtype)
    columns = {"the advantage": outputs.advantages}
    if outputs.returns is not outputs.advantages:
        columns["the return"] = outputs.returns
    for what, column in columns.items():
        if not all_finite(column):
            inputs.check_finite(what, column, inputs.segments.rows)
    return outputs


def run_estimator(
    entry: Entry[Callable[..., Any]], inputs: AdvantageInputs, config: AdvantageConfig, dtype: torch.dtype
) -> AdvantageOutputs:
    """What the estimator gives, in ``dtype`` and spread over the batch's tokens, 0 at mask-0 positions."""
    for need in sorted(entry.needs):
        if getattr(inputs, need, None) is None:
            raise MissingInputError(f"advantage estimator {entry.name!r} needs {need!r}, which the batch does not have")
    if entry.level is Level.OUTCOME:
        outcomes = Outcomes.of(inputs)
        return outcomes.spread(entry.function(outcomes, config), dtype)
    if entry.level is Level.TOKEN:
        episodes = Episodes.of(inputs)
        advantages, returns = entry.function(episodes, config)
        return episodes.spread(advantages, returns, dtype)
    return AdvantageOutputs(*(masked(column, inputs.mask).to(dtype) for column in entry.function(inputs, config)))
