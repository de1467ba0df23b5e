"""From ``data_source`` to the built-in scorer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.errors import RewardError
from runtime.reward import gsm8k, math_answer, math_dapo, math_reward, reasoning_gym_task, search_qa
from runtime.tiny import DATA_SOURCE as TOY_LETTERS
from runtime.tiny import letters_score

BOXED_SOURCES = ("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500")
"""Sources whose boxed answer is compared as text."""

DAPO_SOURCES = ("math_dapo", "math", "math_dapo_reasoning")
"""Sources whose answer follows ``Answer:``; those that begin with ``aime`` as well."""

EXPRESSION_SOURCE = "math_verify"
"""The source whose answer is compared as an expression. No verl source: there ``math_verify`` is a scorer to call."""

SEARCH_SOURCES = tuple(
    f"searchR1_{name}" for name in ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
)
"""Sources of questions with short answers."""

KNOWN = (
    "reasoning_gym/*",
    "openai/gsm8k",
    TOY_LETTERS,
    *BOXED_SOURCES,
    *DAPO_SOURCES,
    "aime*",
    EXPRESSION_SOURCE,
    "searchR1_*",
)

_NOT_BUILT = {
    **dict.fromkeys(
        [
            f"numina_{name}"
            for name in ("aops_forum", "synthetic_math", "amc_aime", "synthetic_amc", "cn_k12", "olympiads")
        ],
        "PRIME's grader of mathematics is not built; give the rows the data_source math_verify",
    ),
    **dict.fromkeys(("codecontests", "apps", "codeforces", "taco"), "running the code of answers is not built"),
    "hiyouga/geometry3k": "images are not built",
}
"""Sources that verl scores and we do not, and why."""


class UnknownSourceError(RewardError, NotImplementedError):
    """A ``data_source`` without a built-in scorer; verl raises NotImplementedError."""


def default_compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **_: Any,
) -> float | dict[str, Any]:
    """Score ``solution_str`` with the built-in scorer of ``data_source``, as verl's function of this name routes.

    Further keywords are those of verl's code sandbox and have no effect. Raises UnknownSourceError naming the source
    and the known ones when there is none.
    """
    if data_source.startswith(reasoning_gym_task.PREFIX):
        return reasoning_gym_task.compute_score(data_source, solution_str, extra_info or {})
    if data_source == "openai/gsm8k":
        return gsm8k.compute_score(solution_str, ground_truth)
    if data_source == TOY_LETTERS:
        return letters_score(solution_str, ground_truth)
    if data_source in BOXED_SOURCES:
        return math_reward.compute_score(solution_str, ground_truth)
    if data_source in DAPO_SOURCES or data_source.startswith("aime"):
        return math_dapo.compute_score(solution_str, ground_truth)
    if data_source == EXPRESSION_SOURCE:
        return math_answer.compute_score(solution_str, ground_truth)
    if data_source in SEARCH_SOURCES:
        return float(search_qa.compute_score(solution_str, ground_truth))
    reason = _NOT_BUILT.get(data_source)
    raise UnknownSourceError(
        f"no built-in scorer for data_source {data_source!r}"
        + (f" ({reason})" if reason else "")
        + f"; there are {', '.join(KNOWN)}. "
        "Give your own function with reward.custom_reward_function.path and .name"
    )
