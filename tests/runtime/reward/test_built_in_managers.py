"""dapo, prime, rate_limited and batch: what they add to naive."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
import torch

from runtime.arrays import object_array
from runtime.errors import ConfigError, RewardError
from runtime.identity import TrajectoryKey
from runtime.reward import (
    BatchedFunctionManager,
    DAPORewardManager,
    NaiveRewardManager,
    PrimeRewardManager,
    RateLimitedRewardManager,
    RewardItem,
    RewardStage,
)
from runtime.reward.lenient import TokenBucket
from runtime.tiny import make_tokenizer
from runtime.trajectories import TrajectoryBatch
from shared_algos.segments import Segments

TOKENIZER = make_tokenizer()
SAMPLE = {"data_source": "s", "reward_model": {"ground_truth": "ab"}, "extra_info": {"index": 0}, "row_number": 3}


def item(text: str = "ab", **columns) -> RewardItem:
    return RewardItem([*TOKENIZER.encode(text, add_special_tokens=False), TOKENIZER.eos_token_id], SAMPLE | columns)


def run(manager, *items):
    async def all_of_them():
        return await asyncio.gather(*(manager.run_single(each) for each in items))

    return asyncio.run(all_of_them())


def one(**_):
    return 1.0


@pytest.mark.parametrize(("tokens", "penalty"), [(1, 0.0), (12, 0.0), (14, -0.25), (16, -0.5), (20, -1.0), (24, -1.5)])
def test_the_penalty_grows_over_the_buffer(tokens, penalty):
    buffer = {"enable": True, "len": 8, "penalty_factor": 1.0, "log": True}
    manager = DAPORewardManager(TOKENIZER, one, max_resp_len=20, overlong_buffer_cfg=buffer)
    result = run(manager, item("a" * (tokens - 1)))[0]
    assert result.reward_score == 1.0 + penalty
    assert result.reward_extra_info == {"acc": 1.0, "overlong_reward": penalty, "overlong": penalty < 0}


@pytest.mark.parametrize(
    ("limit", "length", "words"),
    [
        (None, 4, "needs reward.reward_kwargs.max_resp_len"),
        (8, 0, "len=0 must be above 0"),
        (8, 9, "at most max_resp_len=8"),
    ],
)
def test_a_buffer_that_cannot_be_is_refused(limit, length, words):
    with pytest.raises(ConfigError, match=words):
        DAPORewardManager(
            TOKENIZER, one, max_resp_len=limit, overlong_buffer_cfg={"enable": True, "len": length, "log": False}
        )
    assert DAPORewardManager(TOKENIZER, one, overlong_buffer_cfg={"enable": False}).overlong_buffer is None


def test_hanging_and_failing_answers_score_0_and_the_others_are_scored():
    def compute_score(solution_str, **_):
        if solution_str == "a":
            time.sleep(2)
        if solution_str == "b":
            raise ValueError("units")
        return [0.5, True] if solution_str == "c" else "?"

    manager = PrimeRewardManager(TOKENIZER, compute_score, timeout=0.3, max_concurrent=1)
    started = time.monotonic()
    hung, failed, right, odd = run(manager, *(item(text) for text in "abcd"))
    assert time.monotonic() - started < 2
    assert (hung.reward_score, hung.reward_extra_info) == (0.0, {"acc": 0.0, "timeout": True})
    assert (failed.reward_score, failed.reward_extra_info) == (0.0, {"acc": 0.0, "error": "units"})
    assert right.reward_score == 0.5
    assert odd.reward_score == 0.0
    with pytest.raises(RewardError, match="cannot be scored"):
        run(manager, RewardItem([5], {}))


def test_at_most_so_many_answers_are_in_work_at_once():
    at_once = [0, 0]

    async def compute_score(**_):
        at_once[0] += 1
        at_once[1] = max(at_once)
        await asyncio.sleep(0.01)
        at_once[0] -= 1
        return 1

    run(RateLimitedRewardManager(TOKENIZER, compute_score, max_concurrent=2), *(item() for _ in range(6)))
    assert at_once == [0, 2]


def test_a_bucket_gives_a_seconds_worth_at_once_and_then_its_rate(monkeypatch):
    waits = []

    async def sleep(seconds):
        waits.append(round(seconds, 1))

    async def take():
        bucket = TokenBucket(per_second=2.0)
        for _ in range(4):
            await bucket.take(1)

    monkeypatch.setattr("runtime.reward.lenient.asyncio.sleep", sleep)
    asyncio.run(take())
    assert waits == [0.5, 1.0], "two at once, then one each half second"


def trajectories() -> TrajectoryBatch:
    rows = [list(item(text).response_ids) for text in ("ab", "abc", "x")]
    responses = Segments.from_lengths([len(row) for row in rows])
    return TrajectoryBatch(
        tuple(TrajectoryKey("u", session, 0) for session in range(3)),
        Segments.from_lengths([1, 1, 1]),
        responses,
        {"responses": torch.tensor([token for row in rows for token in row])},
        {
            "data_source": object_array(["s", "t", "s"]),
            "reward_model": object_array([{"ground_truth": "g"}, {}, None]),
            "extra_info": object_array([{"index": 1}, None, {}]),
        },
    )


def test_a_batch_is_scored_by_one_call_with_lists():
    seen = {}

    def compute_score(data_sources, solution_strs, ground_truths, extra_infos, bonus):
        seen.update(locals())
        return [bonus, {"score": np.float32(2), "right": True}, 3]

    batch = trajectories()
    manager = BatchedFunctionManager(TOKENIZER, compute_score, bonus=0.5)
    assert manager.reads({"responses", "data_source", "reward_model", "prompts"}) == (
        "responses",
        "data_source",
        "reward_model",
    )
    made = RewardStage(manager)(batch)
    assert batch.responses.sum(made.columns["rm_scores"]).tolist() == [0.5, 2, 3]
    assert made.columns["rm_scores"].dtype == torch.float32
    assert list(made.objects["reward_extra_info"]) == [{"acc": 0.5}, {"score": 2.0, "right": True}, {"acc": 3.0}]
    assert seen["data_sources"] == ["s", "t", "s"]
    assert seen["solution_strs"] == ["ab", "abc", "x"]
    assert seen["ground_truths"] == ["g", None, None]
    assert seen["extra_infos"] == [{"index": 1, "rollout_reward_scores": {}}, *[{"rollout_reward_scores": {}}] * 2]


def test_what_a_function_of_batches_must_not_be_or_return_is_refused():
    with pytest.raises(ConfigError, match="len has no parameter data_sources"):
        BatchedFunctionManager(TOKENIZER, len)
    for returned, words in (([1], "returned 1 scores for 3 rows"), ([1, 2, "x"], "returned 'x' for trajectory u_2_0")):
        manager = BatchedFunctionManager(TOKENIZER, lambda returned=returned, **_: returned)
        with pytest.raises(RewardError, match=words):
            RewardStage(manager)(trajectories())


def test_scores_of_an_agent_loop_are_left_as_they_are():
    scores = torch.arange(9).float()
    batch = trajectories().with_columns({"rm_scores": scores})
    stage = RewardStage(BatchedFunctionManager(TOKENIZER, one))
    assert stage.reads({"rm_scores", "responses"}) == ("rm_scores",)
    assert torch.equal(stage(batch).columns["token_level_scores"], scores)


def test_a_function_without_extra_info_is_called_without_it():
    def compute_score(data_source, solution_str, ground_truth):
        return float(solution_str == ground_truth and data_source == "s")

    def any_keywords(**given):
        return len(given)

    assert run(NaiveRewardManager(TOKENIZER, compute_score), item())[0].reward_score == 1.0
    assert run(NaiveRewardManager(TOKENIZER, any_keywords), item())[0].reward_score == 4


def test_scores_and_fields_of_tools_reach_the_function():
    seen = {}
    manager = NaiveRewardManager(TOKENIZER, lambda extra_info, **_: seen.update(extra_info) or 1)
    run(manager, item(reward_scores={"search": 1}, tool_extra_fields={"calls": 2}))
    assert seen == {"index": 0, "calls": 2, "rollout_reward_scores": {"search": 1}}
