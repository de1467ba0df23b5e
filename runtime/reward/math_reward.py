r"""The last ``\boxed{}`` answer compared as normalised LaTeX text.

Behaviour of ``verl.utils.reward_score.math_reward``. The rules are those of the MATH benchmark (arXiv:2103.03874): a
few spellings of one expression become the same text, and nothing is evaluated. For answers compared as expressions see
``runtime.reward.math_answer``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from runtime.errors import RewardError


class NotBoxedError(RewardError, AssertionError):
    r"""A text that should be one ``\boxed{}`` is not; verl asserts it."""


_SPELLINGS = (
    ("\n", ""),
    ("\\!", ""),
    ("\\\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    ("\\left", ""),
    ("\\right", ""),
    ("^{\\circ}", ""),
    ("^\\circ", ""),
    ("\\$", ""),
)
"""What is written in place of what, before units are cut off."""

_PERCENT_AND_ZEROS = (("\\%", ""), (" .", " 0."), ("{.", "{0."))
"""The same, after that."""

_SIMPLE_FRACTION = re.compile(r"(-?[1-9][0-9]*|0)/(-?[1-9][0-9]*|0)")


def compute_score(solution_str: str, ground_truth: str) -> float:
    """1 when the last boxed answer equals ``ground_truth`` up to spelling, else 0."""
    boxed = last_boxed_only_string(solution_str)
    try:
        return float(boxed is not None and is_equiv(remove_boxed(boxed), ground_truth))
    except NotBoxedError:
        return 0.0


def compute_score_batched(
    data_sources: Sequence[str],  # noqa: ARG001
    solution_strs: Sequence[str],
    ground_truths: Sequence[str],
    extra_infos: Sequence[Any],  # noqa: ARG001
) -> list[float]:
    """``compute_score`` of each row, for the reward manager ``batch`` (verl's ``math_batch``)."""
    return [compute_score(solution, truth) for solution, truth in zip(solution_strs, ground_truths, strict=True)]


def is_equiv(str1: str | None, str2: str | None, verbose: bool = False) -> bool:
    """Whether two answers are the same text once normalised; where one cannot be, whether they are as they stand."""
    if str1 is None or str2 is None:
        return str1 is str2
    try:
        first, second = strip_string(str1), strip_string(str2)
    except (IndexError, ValueError):
        return str1 == str2
    if verbose:
        print(first, second)
    return first == second


def last_boxed_only_string(string: str) -> str | None:
    r"""The last ``\boxed{...}`` (or ``\fbox``) with its braces, ``\boxed `` up to the next dollar; else ``None``."""
    if "\\boxed " in string:
        return "\\boxed " + string.split("\\boxed ")[-1].split("$")[0]
    start = string.rfind("\\boxed")
    if start < 0:
        start = string.rfind("\\fbox")
    return None if start < 0 else up_to_closing_brace(string, start)


def up_to_closing_brace(string: str, start: int) -> str | None:
    """``string`` from ``start`` to the brace that closes the first one opened there; ``None`` when it stays open."""
    depth = 0
    for place in range(start, len(string)):
        depth += {"{": 1, "}": -1}.get(string[place], 0)
        if string[place] == "}" and depth == 0:
            return string[start : place + 1]
    return None


def remove_boxed(s: str) -> str:
    r"""What is inside ``\boxed{...}`` or follows ``\boxed ``; NotBoxedError for any other text."""
    left, right = ("\\boxed ", "") if "\\boxed " in s else ("\\boxed{", "}")
    if not (s.startswith(left) and s.endswith(right)):
        raise NotBoxedError(f"{s!r} is not {left}...{right}")
    return s[len(left) : len(s) - len(right)]


def strip_string(string: str) -> str:
    """One spelling of an answer. Raises IndexError or ValueError where its LaTeX breaks off."""
    for written, meant in _SPELLINGS:
        string = string.replace(written, meant)
    string = remove_right_units(string)
    for written, meant in _PERCENT_AND_ZEROS:
        string = string.replace(written, meant)
    if not string:
        return string
    string = "0" + string if string[0] == "." else string
    sides = string.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:  # "x = 3"
        string = sides[1]
    string = fix_fracs(fix_sqrt(string).replace(" ", ""))
    return fix_a_slash_b("\\frac{1}{2}" if string == "0.5" else string)


def remove_right_units(string: str) -> str:
    r"""The text before ``\text{ ``, which in MATH only ever opens a unit; ValueError where it opens two."""
    before, *units = string.split("\\text{ ")
    if len(units) > 1:
        raise ValueError(f"more than one unit in {string!r}")
    return before


def fix_sqrt(string: str) -> str:
    r"""``\sqrt3`` as ``\sqrt{3}``."""
    head, *roots = string.split("\\sqrt")
    return head + "".join("\\sqrt" + (root if root[0] == "{" else f"{{{root[0]}}}{root[1:]}") for root in roots)


def fix_fracs(string: str) -> str:
    r"""``\frac12`` and ``\frac1{2}`` as ``\frac{1}{2}``; the text as it is where a fraction breaks off."""
    head, *fractions = string.split("\\frac")
    for place, fraction in enumerate(fractions):
        if fraction[0] == "{":
            continue
        if len(fraction) < 2:
            return string
        top, bottom, rest = fraction[0], fraction[1], fraction[2:]
        fractions[place] = f"{{{top}}}" + (bottom if bottom == "{" else f"{{{bottom}}}") + rest
    return "\\frac".join([head, *fractions])


def fix_a_slash_b(string: str) -> str:
    r"""``a/b`` of two whole numbers as ``\frac{a}{b}``."""
    match = _SIMPLE_FRACTION.fullmatch(string)
    return f"\\frac{{{match[1]}}}{{{match[2]}}}" if match else string
