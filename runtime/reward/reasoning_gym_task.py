"""Tasks of reasoning-gym, scored by the package's own verifiers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from runtime.errors import RewardError

PREFIX = "reasoning_gym/"

ENTRY_KEY = "reasoning_gym_entry"
"""The key of ``extra_info`` that holds the task's entry (question, answer, metadata) as JSON, for the verifier."""


def compute_score(data_source: str, solution_str: str, extra_info: Mapping[str, Any]) -> float:
    """The verifier's score, from 0 to 1, for the text in the last ``<answer>`` tag, or for all of it without one.

    data_source: ``reasoning_gym/TASK``. Several verifiers give a part of the score to an answer among other words.
    """
    from reasoning_gym.utils import extract_answer

    if ENTRY_KEY not in extra_info:
        raise RewardError(
            f"data_source {data_source!r} needs extra_info.{ENTRY_KEY}; "
            "write the file with `verlift data reasoning-gym --task TASK --out FILE`"
        )
    tagged = extract_answer(solution_str)
    answer = solution_str.strip() if tagged is None else tagged
    return float(_verifier(data_source.removeprefix(PREFIX))(answer, json.loads(extra_info[ENTRY_KEY])))


@cache
def _verifier(task: str) -> Any:
    from reasoning_gym import get_score_answer_fn

    try:
        return get_score_answer_fn(task)
    except ValueError:
        raise RewardError(f"reasoning-gym has no task {task!r}") from None
