"""From ``data_source`` to the built-in scorer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.errors import RewardError
from runtime.reward import gsm8k, math_answer, reasoning_gym_task
from runtime.tiny import DATA_SOURCE as TOY_LETTERS
from runtime.tiny import letters_score

MATH_SOURCES = ("math", "lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500")
"""Sources whose ground truth is an expression in LaTeX or plain notation (verl's names for them)."""

KNOWN = ("reasoning_gym/*", "openai/gsm8k", TOY_LETTERS, *MATH_SOURCES)


def default_compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any] | None = None
) -> float:
    """Score ``solution_str`` with the built-in scorer of ``data_source``: from 0 to 1.

    Raises RewardError naming the source and the known ones when there is none.
    """
    if data_source.startswith(reasoning_gym_task.PREFIX):
        return reasoning_gym_task.compute_score(data_source, solution_str, extra_info or {})
    if data_source == "openai/gsm8k":
        return gsm8k.compute_score(solution_str, ground_truth)
    if data_source == TOY_LETTERS:
        return letters_score(solution_str, ground_truth)
    if data_source in MATH_SOURCES:
        return math_answer.compute_score(solution_str, ground_truth)
    raise RewardError(
        f"no built-in scorer for data_source {data_source!r}; there are {', '.join(KNOWN)}. "
        "Give your own function with reward.custom_reward_function.path and .name"
    )
