"""The built-in scorers and verl 0.9.1's give the same score for the same answer, or fail alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.reward import default_compute_score, gsm8k, math_dapo, math_reward, search_qa

pytestmark = pytest.mark.oracle

FOLDER = Path(__file__).parents[2] / ".oracle"

ANSWERS = [
    "", "7", "07", "-7", "1,234", "1234", "0.5", ".5", "1/2", "-1/2", "01/2", "1/2/3", "a/b", "3.14", "50%", "50\\%",
    "50\\\\%", "\\frac12", "\\frac{1}{2}", "\\frac1{2}", "\\frac{1}2", "\\dfrac{1}{2}", "\\tfrac12", "\\frac",
    "\\frac1", "\\frac12x", "\\sqrt2", "\\sqrt{2}", "\\sqrt", "2\\sqrt3x", "\\sqrt\\frac12", "x=3", "k = 3", "xyz=3",
    "a=b=c", "=", "90^\\circ", "90^{\\circ}", "\\$5", "$5$", "5 dollars", "5\\text{ cm}", "5\\text{ cm}\\text{ each}",
    "5 \\text{cm}", "12 units", "\\left(1,2\\right)", "(1, 2)", "[1,2)", "\\{1,2\\}", "{.5}", "x .5", "a b c",
    "an apple", "a\nb", "1\\!000", "\\text{yes}", "\\textbf{B}", "\\overline{AB}", "\\boxed{3}", "\\mbox{no}",
    "x^2+1", "10{,}000", "1\\ 2", "3\\,4", "\\pi", "\\infty", "٣", "²", "2 and 3", "2,\\text{and}3", "5,\\!000",
    "\\mathrm{th}", "\"7\"", "7.", "7.$", "10 km", "sqrt2", "frac12", "frac{1}{2}",
]  # fmt: skip

TEXTS = [
    "{}", "\\boxed{{{}}}", "so \\boxed{{{}}}.", "$\\boxed{{{}}}$ and $\\boxed{{9}}$", "\\boxed {}", "\\boxed {}$ end",
    "\\fbox{{{}}}", "\\boxed{{{}", "Answer: {}", "answer : {}\nmore", "Answer: 1\nAnswer: {}", "Answer:", "#### {}",
    "#### 1\n#### {}", "<answer>{}</answer>", "<answer>1</answer><answer> {} </answer>", "<answer>{}",
    "the answer is {}", "\\boxed{{a{{b}}{}}}", "Answer: $\\frac12$ = {}", "x" * 200 + " \\boxed{{{}}} " + "y" * 80,
    "Answer: {}" + "z" * 310, "}}\\boxed{{{}}}",
]  # fmt: skip

SOLUTIONS = [text.format(answer) for text in TEXTS for answer in ANSWERS]


@pytest.fixture(scope="module")
def verl(process_of_verl) -> Iterator[Callable[..., Any]]:
    with process_of_verl("reward_side.py") as call:
        yield call


def ours(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return "returned", function(*arguments)
    except Exception as error:
        return "raised", type(error)


def same(function: Callable[..., Any], module: str, calls: list[tuple[Any, ...]], verl: Callable[..., Any]) -> None:
    """Every call has verl's result, or raises what is verl's error as well."""
    theirs = verl("call_all", module=module, name=function.__name__, calls=calls)
    assert len(theirs) == len(calls) > 0
    for arguments, (kind, expected) in zip(calls, theirs, strict=True):
        got = ours(function, arguments)
        assert got[0] == kind, (arguments, got, expected)
        if kind == "raised":
            assert expected in {base.__name__ for base in got[1].__mro__}, (arguments, got, expected)
        else:
            assert got[1] == expected, (arguments, got, expected)


PAIRS = [(solution, truth) for solution in SOLUTIONS for truth in ("7", "0.5", "\\frac{1}{2}", "(1,2)", "\\sqrt{2}")]


@pytest.mark.parametrize("name", ["compute_score", "is_equiv"])
def test_math_reward(name, verl):
    pairs = PAIRS if name == "compute_score" else list(itertools.product(ANSWERS, ANSWERS))
    same(getattr(math_reward, name), ".math_reward", pairs, verl)


@pytest.mark.parametrize("name", ["last_boxed_only_string", "remove_boxed", "fix_fracs", "fix_sqrt", "fix_a_slash_b"])
def test_parts_of_math_reward(name, verl):
    same(getattr(math_reward, name), ".math_reward", [(text,) for text in [*SOLUTIONS, *ANSWERS]], verl)


@pytest.mark.parametrize("name", ["last_boxed_only_string", "normalize_final_answer"])
def test_parts_of_math_dapo(name, verl):
    same(getattr(math_dapo, name), ".math_dapo", [(text,) for text in [*SOLUTIONS, *ANSWERS]], verl)


def test_math_dapo(verl):
    same(math_dapo.compute_score, ".math_dapo", PAIRS, verl)
    same(math_dapo.compute_score, ".math_dapo", [(*pair, True) for pair in PAIRS], verl)
    same(math_dapo.is_correct_minerva, ".math_dapo", [(s, "\\boxed{7}", True) for s in SOLUTIONS], verl)
    places = [(solution, "7", [1, 2, 3, 150]) for solution in SOLUTIONS]
    same(math_dapo.is_correct_strict_box, ".math_dapo", places, verl)


def test_gsm8k(verl):
    texts = [*SOLUTIONS, "####  7", "#### .", ". ,", "#### 1,2,3", "so $5", "#### -3.5!"]
    for method in ("strict", "flexible"):
        same(gsm8k.extract_solution, ".gsm8k", [(text, method) for text in texts], verl)
        same(gsm8k.compute_score, ".gsm8k", [(text, "7", method, 0.25) for text in texts], verl)


def test_search_qa(verl):
    truths = [{"target": "7"}, {"target": ["The  Apple!", "b"]}, {"target": "a b c"}, {"target": []}]
    texts = [*SOLUTIONS, "<answer>" * 12 + "7</answer>", "<answer>an APPLE,</answer>"]
    for function in (search_qa.compute_score, search_qa.compute_score_subem):
        calls = [(text, truth, "strict", 0.1) for text in texts for truth in truths]
        same(function, ".search_r1_like_qa_em", calls, verl)
    same(search_qa.normalize_answer, ".search_r1_like_qa_em", [(text,) for text in texts], verl)


SOURCES = ["openai/gsm8k", "lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"]
SOURCES += ["math_dapo", "math", "math_dapo_reasoning", "aime2024", "aime_x"]


def test_sources_are_routed_alike(verl):
    calls = [(source, solution, "7") for source in SOURCES for solution in SOLUTIONS[::7]]
    calls += [("searchR1_nq", solution, {"target": ["7"]}) for solution in SOLUTIONS[::7]]
    calls += [("no/such_source", "7", "7")]
    same(default_compute_score, "", calls, verl)


EXPRESSIONS = [
    ("\\boxed{\\frac{1}{2}}", "0.5"), ("The answer is $1,234$.", "1234"), ("\\boxed{3}", "4"), ("I do not know", "4"),
    ("so x = \\boxed{x^2+2x+1}", "(x+1)^2"), ("\\boxed{(1,2)}", "(1, 2)"), ("7 or \\boxed{8}", "7"), ("7", "7"),
    ("\\boxed{\\{1,2\\}}", "\\{2,1\\}"), ("$\\sqrt{8}$", "2\\sqrt{2}"), ("\\boxed{50\\%}", "0.5"), ("", "1"),
    ("\\boxed{}", ""),
]  # fmt: skip


def test_answers_compared_as_expressions(verl):
    from runtime.reward import math_answer

    same(math_answer.compute_score, ".math_verify", EXPRESSIONS, verl)
