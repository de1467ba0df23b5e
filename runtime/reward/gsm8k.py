"""GSM8K: the number after ``####`` (behaviour of ``verl.utils.reward_score.gsm8k``)."""

from __future__ import annotations

import re

_ANSWER = re.compile(r"#### (\-?[0-9\.\,]+)")
_NUMBER = re.compile(r"\-?[0-9\.\,]+")

# verl's limit: an answer stands at the end, and the patterns are slow on long texts.
_TAIL_CHARACTERS = 300


def extract_solution(solution_str: str, method: str = "strict") -> str | None:
    """Return the answer in ``solution_str``, or None.

    method: ``strict`` takes the last number after ``#### `` without commas and dollars; ``flexible`` the last number
    anywhere, as it is written.
    """
    tail = solution_str[-_TAIL_CHARACTERS:]
    if method == "strict":
        answers = _ANSWER.findall(tail)
        return answers[-1].replace(",", "").replace("$", "") if answers else None
    if method == "flexible":
        found = _NUMBER.findall(tail)
        numbers = [number for number in found if number != "."] or found[:1]
        return numbers[-1] if numbers else None
    raise ValueError(f"method {method!r} is not known: expected 'strict' or 'flexible'")


def compute_score(
    solution_str: str, ground_truth: str, method: str = "strict", format_score: float = 0.0, score: float = 1.0
) -> float:
    """``score`` for the right answer, ``format_score`` for a wrong one, 0 when there is none; compared as text."""
    answer = extract_solution(solution_str, method)
    if answer is None:
        return 0.0
    return score if answer == ground_truth else format_score
