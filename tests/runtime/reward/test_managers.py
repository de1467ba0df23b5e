from __future__ import annotations

import asyncio
import math
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import RewardError
from runtime.reward import NaiveRewardManager, RewardItem, default_compute_score, load_compute_score
from runtime.tiny import make_tokenizer

TOKENIZER = make_tokenizer()
SAMPLE = {
    "data_source": "verlift/toy_letters",
    "reward_model": {"style": "rule", "ground_truth": "abc"},
    "extra_info": {"index": 0},
    "row_number": 17,
}


def run(compute_score, text="ab", sample=SAMPLE, **kwargs):
    ids = [*TOKENIZER.encode(text, add_special_tokens=False), TOKENIZER.eos_token_id]
    manager = NaiveRewardManager(TOKENIZER, compute_score, locate="train.parquet row {}".format)
    return asyncio.run(manager.run_single(RewardItem(ids, sample, **kwargs)))


def test_the_function_gets_the_text_without_special_tokens_and_the_row():
    seen = {}

    def compute_score(**arguments):
        seen.update(arguments, thread=threading.current_thread())
        return 1

    result = run(compute_score, num_turns=2)
    assert threading.current_thread() is not seen.pop("thread")
    assert seen == {
        "data_source": "verlift/toy_letters",
        "solution_str": "ab",
        "ground_truth": "abc",
        "extra_info": {"index": 0, "num_turns": 2},
    }
    assert SAMPLE["extra_info"] == {"index": 0}
    assert (result.reward_score, result.reward_extra_info) == (1.0, {"acc": 1.0})


def test_a_built_in_scorer_and_a_row_without_extra_info():
    sample = {key: value for key, value in SAMPLE.items() if key != "extra_info"}
    assert run(default_compute_score, "ab!!", sample).reward_score == 0.5


def test_async_functions_and_async_objects_are_awaited():
    async def compute_score(**_):
        await asyncio.sleep(0)
        return 0.25

    class Scorer:
        async def __call__(self, **_):
            return 0.75

    assert run(compute_score).reward_score == 0.25
    assert run(Scorer()).reward_score == 0.75


def test_what_a_dict_holds_besides_the_score_is_kept():
    result = run(lambda **_: {"score": np.float32(0.5), "format": torch.tensor(True), "pred": "7"})
    assert result.reward_score == 0.5
    assert result.reward_extra_info == {"score": 0.5, "format": True, "pred": "7"}


@settings(max_examples=50, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**9), 10**9) | st.booleans())
def test_any_finite_number_is_the_score(value):
    for form in (value, np.asarray(value), torch.tensor([value], dtype=torch.float64)):
        assert run(lambda form=form, **_: form).reward_score == float(value)


@pytest.mark.parametrize(
    "returned",
    [math.nan, math.inf, np.float32("nan"), "1.0", None, {}, {"acc": 1.0}, {"score": "1"}, [1.0], 1j, np.ones(2)],
)
def test_what_is_not_a_finite_number_is_refused(returned):
    with pytest.raises(RewardError) as caught:
        run(lambda **_: returned)
    message = str(caught.value)
    assert "lambda" in message
    assert __file__ in message
    assert "train.parquet row 17 (data_source 'verlift/toy_letters')" in message
    assert repr(returned) in message


def test_a_function_that_raises_is_named_with_the_row():
    def explode(**_):
        raise KeyError("units")

    with pytest.raises(RewardError, match=r"explode .* raised KeyError: 'units' for train\.parquet row 17") as caught:
        run(explode)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("column", ["data_source", "reward_model"])
def test_a_row_that_lacks_what_scoring_needs_is_named_with_its_columns(column):
    sample = {key: value for key, value in SAMPLE.items() if key != column}
    with pytest.raises(RewardError, match=rf"train\.parquet row 17 cannot be scored.*{column}"):
        run(default_compute_score, sample=sample)


def test_a_function_is_loaded_by_path_and_name_with_its_keywords(tmp_path):
    file = tmp_path / "scores.py"
    file.write_text("def halved(data_source, solution_str, ground_truth, extra_info=None, by=2):\n    return 1 / by\n")
    assert run(load_compute_score(file, "halved")).reward_score == 0.5
    assert run(load_compute_score(file, "halved", {"by": 4})).reward_score == 0.25
    with pytest.raises(RewardError, match=r"scores\.py has no 'compute_score'"):
        load_compute_score(file)
    file.with_name("constant.py").write_text("compute_score = 1.0")
    with pytest.raises(RewardError, match=r"constant\.py: 'compute_score' is float, not a function"):
        load_compute_score(file.with_name("constant.py"))


def test_no_path_means_the_built_in_routing():
    assert load_compute_score(None) is default_compute_score


def test_a_failing_function_of_a_file_is_named_with_its_file(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text("def compute_score(**_):\n    return 'good'\n")
    with pytest.raises(RewardError, match=r"compute_score \(.*bad\.py\) returned 'good'"):
        run(load_compute_score(file, reward_kwargs={"strict": True}))
