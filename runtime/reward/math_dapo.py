r"""An answer after ``Answer:``, or boxed, compared as normalised text.

Behaviour of ``verl.utils.reward_score.math_dapo``. The normalisation is Minerva's (arXiv:2206.14858, appendix D.1).
"""

from __future__ import annotations

import re
from typing import Any

from runtime.reward.math_reward import NotBoxedError, up_to_closing_brace

SUBSTITUTIONS = [
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
]
"""What is written in place of what, in order."""

_WORDS = (
    "square ways integers dollars mph inches hours km units \\ldots sue points feet minutes digits cents degrees cm gm "
    "pounds meters meals edges students childrentickets multiples"
)
REMOVED_EXPRESSIONS = [
    *_WORDS.split(),
    *("\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}", "\\text{}"),
    *("\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
]
"""Units, and marks without a meaning, removed in order."""

_REWRITTEN = (
    (r"(.*?)(\$)(.*?)(\$)(.*)", r"$\3$"),
    *((rf"(\\{command}\{{)(.*?)(\}})", r"\2") for command in ("text", "textbf", "overline")),
    (r"(\\boxed\{)(.*)(\})", r"\2"),
    (r"(frac)([^{])(.)", r"frac{\2}{\3}"),
    (r"(sqrt)([^{])", r"sqrt{\2}"),
)
r"""The formula alone, what commands enclose, and ``\fracab`` and ``\sqrta`` with their braces."""

# The longest answer of MATH-500 has 159 characters.
_TAIL_CHARACTERS = 300
_BOX_CHARACTERS = 100
_NO_ANSWER = "[INVALID]"
_ANSWER = r"(?i)Answer\s*:\s*([^\n]+)"


def compute_score(
    solution_str: str,
    ground_truth: str,
    strict_box_verify: bool = False,
    pause_tokens_index: list[int] | None = None,
) -> dict[str, Any]:
    """``score`` is 1 for the right answer and -1 otherwise, ``acc`` whether it is right, ``pred`` what was found."""
    correct, pred = verify(solution_str[-_TAIL_CHARACTERS:], ground_truth, strict_box_verify, pause_tokens_index)
    return {"score": 1.0 if correct else -1.0, "acc": correct, "pred": pred}


def verify(
    solution_str: str, answer: str, strict_box_verify: bool = False, pause_tokens_index: list[int] | None = None
) -> tuple[bool, str | None]:
    """Whether ``answer`` is given, and what was: after ``Answer:`` or, without one, boxed; strictly: boxed alone."""
    if not strict_box_verify:
        correct, pred = is_correct_minerva(solution_str, answer)
        if pred != _NO_ANSWER:
            return correct, pred
    score, boxed = is_correct_strict_box(solution_str, answer, pause_tokens_index)
    if boxed is None and not strict_box_verify:
        return correct, pred
    return score == 1, boxed


def is_correct_minerva(
    solution_str: str, gt: str, gt_need_extract: bool = False, answer_pattern: str = _ANSWER
) -> tuple[bool, str]:
    """Whether the last answer by ``answer_pattern`` is ``gt`` once both are normalised, and that answer.

    gt_need_extract: ``gt`` is a solution whose boxed answer counts.
    """
    answers = re.findall(answer_pattern, solution_str)
    pred = normalize_final_answer(answers[-1] if answers else _NO_ANSWER)
    if gt_need_extract:
        boxed = last_boxed_only_string(gt)
        if boxed is None:
            raise NotBoxedError(f"the ground truth {gt!r} has no boxed answer")
        gt = remove_boxed(boxed)
    return pred == normalize_final_answer(gt), pred


def is_correct_strict_box(pred: str, gt: str, pause_tokens_index: list[int] | None = None) -> tuple[int, str | None]:
    """1 or -1 for whether the last box of the last 100 characters holds ``gt`` to the letter, and what it holds.

    pause_tokens_index: four places in ``pred``; the characters are counted back from the last of them.
    """
    if pause_tokens_index is not None and len(pause_tokens_index) != 4:
        raise ValueError(f"pause_tokens_index must hold 4 places, got {pause_tokens_index}")
    end = 0 if pause_tokens_index is None else pause_tokens_index[-1]
    boxed = last_boxed_only_string(pred[end - _BOX_CHARACTERS :])
    extracted = None if boxed is None else remove_boxed(boxed)
    return (1 if extracted == gt else -1), extracted


def last_boxed_only_string(string: str) -> str | None:
    r"""The last ``\boxed{...}`` with its braces, ``None`` without one that is closed."""
    start = string.rfind("\\boxed{")
    return None if start < 0 else up_to_closing_brace(string, start)


def remove_boxed(s: str) -> str:
    r"""What is inside ``\boxed{...}``; NotBoxedError for any other text."""
    left = "\\boxed{"
    if not (s.startswith(left) and s.endswith("}")):
        raise NotBoxedError(f"{s!r} is not {left}...}}")
    return s[len(left) : -1]


def normalize_final_answer(final_answer: str) -> str:
    """One spelling of an answer: what follows the last equals sign, without units, spaces and marks."""
    final_answer = final_answer.split("=")[-1]
    for written, meant in (*SUBSTITUTIONS, *((expression, "") for expression in REMOVED_EXPRESSIONS)):
        final_answer = final_answer.replace(written, meant)
    for pattern, replacement in _REWRITTEN:
        final_answer = re.sub(pattern, replacement, final_answer)
    final_answer = final_answer.replace("$", "")
    digits = final_answer.replace(",", "")
    return (digits if digits.isdigit() else final_answer).strip()
