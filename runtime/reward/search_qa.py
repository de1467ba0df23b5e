"""Short answers in ``<answer>`` tags, compared as words.

Behaviour of ``verl.utils.reward_score.search_r1_like_qa_em``.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)

# A response that repeats the tag so often looks for the answer by chance.
_MANY_TAGS = 10


def compute_score(
    solution_str: str,
    ground_truth: Mapping[str, str | Sequence[str]],
    method: str = "strict",  # noqa: ARG001
    format_score: float = 0.0,
    score: float = 1.0,
) -> float:
    """``score`` when the last answer is one of ``ground_truth["target"]``, else ``format_score``; 0 without an answer.

    A quarter of ``score`` when there are more than ten opening or closing tags.
    """
    answer = extract_solution(solution_str)
    if answer is None:
        return 0
    if not em_check(answer, ground_truth["target"]):
        return format_score
    return score / 4 if max(count_answer_tags(solution_str)) > _MANY_TAGS else score


def compute_score_subem(
    solution_str: str,
    ground_truth: Mapping[str, str | Sequence[str]],
    method: str = "strict",  # noqa: ARG001
    format_score: float = 0.0,
    score: float = 1.0,
) -> float:
    """As ``compute_score``, where the answer only has to contain one of the targets; tags are not counted."""
    answer = extract_solution(solution_str)
    if answer is None:
        return 0
    return score if subem_check(answer, ground_truth["target"]) else format_score


def extract_solution(solution_str: str) -> str | None:
    """The text of the last ``<answer>`` tag, ``None`` without one."""
    answers = _ANSWER.findall(solution_str)
    return answers[-1].strip() if answers else None


def count_answer_tags(text: str) -> tuple[int, int]:
    """Opening and closing tags in ``text``."""
    return text.count("<answer>"), text.count("</answer>")


def em_check(prediction: str, golden_answers: str | Sequence[str]) -> int:
    """1 when ``prediction`` is one of the answers, once normalised, else 0."""
    return int(normalize_answer(prediction) in _normalized(golden_answers))


def subem_check(prediction: str, golden_answers: str | Sequence[str]) -> int:
    """1 when one of the answers is in ``prediction``, once normalised, else 0."""
    prediction = normalize_answer(prediction)
    return int(any(answer in prediction for answer in _normalized(golden_answers)))


def normalize_answer(s: str) -> str:
    """Lower case, without punctuation and articles, words one space apart."""
    return " ".join(_ARTICLES.sub(" ", s.lower().translate(_WITHOUT_PUNCTUATION)).split())


def _normalized(answers: str | Sequence[str]) -> list[str]:
    return [normalize_answer(answer) for answer in ([answers] if isinstance(answers, str) else answers)]
