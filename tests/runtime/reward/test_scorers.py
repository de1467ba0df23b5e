from __future__ import annotations

import json

import pytest
import reasoning_gym

from runtime.errors import RewardError
from runtime.reward import default_compute_score
from runtime.reward.gsm8k import compute_score, extract_solution
from runtime.reward.reasoning_gym_task import ENTRY_KEY


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("so 3 + 4 = 7\n#### 7", "7", "7"),
        ("#### 1,234", "1234", "1,234"),
        ("#### -2.5 then #### -3", "-3", "-3"),
        ("the answer is 42", None, "42"),
        ("it is 42 .", None, "42"),
        ("####7", None, "7"),
        ("no number", None, None),
        ("#### 5" + " " * 400 + "and 6", None, "6"),
    ],
)
def test_gsm8k_takes_the_answer_as_verl_does(text, strict, flexible):
    assert extract_solution(text, "strict") == strict
    assert extract_solution(text, "flexible") == flexible


def test_gsm8k_scores_right_wrong_and_missing_answers():
    assert compute_score("#### 7", "7") == 1.0
    assert compute_score("#### 8", "7", format_score=0.1) == 0.1
    assert compute_score("seven", "7", format_score=0.1) == 0.0
    with pytest.raises(ValueError, match="'loose' is not known"):
        compute_score("#### 7", "7", method="loose")


@pytest.mark.parametrize(
    ("solution", "truth", "score"),
    [
        (r"Hence \boxed{\frac{1}{2}}.", "0.5", 1.0),
        ("The answer is $1,234$.", "1234", 1.0),
        (r"\boxed{3}", "4", 0.0),
        ("I do not know.", "4", 0.0),
    ],
)
def test_math_answers_are_compared_as_expressions(solution, truth, score):
    assert default_compute_score("math_verify", solution, truth) == score


def test_an_answer_that_cannot_be_evaluated_is_wrong_and_the_next_one_is_scored(monkeypatch):
    monkeypatch.setattr("runtime.reward.math_answer._SECONDS", 0.5)
    assert default_compute_score("math_verify", r"\boxed{9^{9^{9}}}", "5") == 0.0
    monkeypatch.undo()
    assert default_compute_score("math_verify", r"\boxed{5}", "5") == 1.0


@pytest.mark.parametrize("task", ["chain_sum", "spell_backward", "countdown"])
def test_reasoning_gym_scores_its_own_answers_from_the_row_alone(task):
    entry = reasoning_gym.create_dataset(task, size=1, seed=4)[0]
    extra_info = {ENTRY_KEY: json.dumps(entry)}
    solution = entry["answer"] or entry["metadata"]["expression"]
    source = f"reasoning_gym/{task}"
    assert default_compute_score(source, f"Let me see <answer>{solution}</answer>.", "", extra_info) == 1.0
    assert default_compute_score(source, f" {solution}\n", "", extra_info) == 1.0
    assert default_compute_score(source, "<answer>@</answer>", "", extra_info) < 0.5


def test_reasoning_gym_rows_without_their_entry_and_unknown_tasks_are_refused():
    with pytest.raises(RewardError, match=rf"reasoning_gym/chain_sum.*{ENTRY_KEY}"):
        default_compute_score("reasoning_gym/chain_sum", "7", "7")
    with pytest.raises(RewardError, match="no task 'chain_some'"):
        default_compute_score("reasoning_gym/chain_some", "7", "7", {ENTRY_KEY: "{}"})


def test_an_unknown_source_comes_with_the_known_ones():
    with pytest.raises(RewardError, match=r"'my/task'.*openai/gsm8k.*custom_reward_function"):
        default_compute_score("my/task", "7", "7")
