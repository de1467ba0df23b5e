"""Figures of a batch, by hand."""

from dataclasses import replace

import pytest
import torch

from runtime.identity import TrajectoryKey
from runtime.metrics import batch_metrics
from runtime.trajectories import TrajectoryBatch
from shared_algos.segments import Segments


def make_batch(**columns: list[float]) -> TrajectoryBatch:
    """Two rows of 2 and 3 response tokens; the last token is masked."""
    base = {
        "response_mask": [1, 1, 1, 1, 0],
        "entropy": [1.0, 2.0, 3.0, 6.0, 99.0],
        "token_level_scores": [0.0, 1.0, 0.0, 0.0, 3.0],
        "token_level_rewards": [0.0, 0.5, 0.0, 0.0, 3.0],
        "advantages": [1.0, 1.0, -2.0, -2.0, 0.0],
        "returns": [1.0, 2.0, 3.0, 4.0, 0.0],
    }
    return TrajectoryBatch(
        keys=(TrajectoryKey("a", 0, 0), TrajectoryKey("a", 1, 0)),
        prompts=Segments.from_lengths([4, 6]),
        responses=Segments.from_lengths([2, 3]),
        columns={name: torch.tensor(values) for name, values in (base | columns).items()},
    )


def test_masked_tokens_count_in_rows_and_not_in_token_figures():
    metrics = batch_metrics(make_batch(), max_response_length=3, max_prompt_length=6)
    assert metrics["critic/score/mean"] == 2.0
    assert metrics["critic/rewards/mean"] == 1.75
    assert metrics["critic/advantages/mean"] == -0.5
    assert metrics["critic/advantages/min"] == -2.0
    assert metrics["critic/returns/max"] == 4.0
    assert metrics["actor/entropy"] == 3.0
    assert metrics["response_length/mean"] == 2.5
    assert metrics["response_length/clip_ratio"] == 0.5
    assert metrics["prompt_length/max"] == 6.0
    assert metrics["prompt_length/clip_ratio"] == 0.5
    assert metrics["perf/total_num_tokens"] == 15.0
    assert "critic/values/mean" not in metrics


def test_explained_variance_is_one_for_values_that_are_the_returns():
    metrics = batch_metrics(make_batch(values=[1.0, 2.0, 3.0, 4.0, 50.0]), max_response_length=9, max_prompt_length=6)
    assert metrics["critic/values/mean"] == 2.5
    assert metrics["critic/vf_explained_var"] == 1.0


def test_a_batch_whose_every_token_is_masked_has_zeros():
    metrics = batch_metrics(make_batch(response_mask=[0, 0, 0, 0, 0]), max_response_length=9, max_prompt_length=6)
    assert metrics["critic/advantages/mean"] == metrics["actor/entropy"] == 0.0


def test_a_row_without_a_response_counts_among_the_lengths_alone():
    batch = make_batch()
    empty = replace(
        batch,
        keys=(*batch.keys, TrajectoryKey("b", 0, 0)),
        prompts=Segments.from_lengths([4, 6, 5]),
        responses=Segments.from_lengths([2, 3, 0]),
    )
    metrics = batch_metrics(empty, max_response_length=3, max_prompt_length=6)
    assert metrics["critic/score/mean"] == 2.0
    assert metrics["response/aborted_ratio"] == pytest.approx(1 / 3)
    assert (metrics["response_length/min"], metrics["response_length_non_aborted/min"]) == (0.0, 2.0)
    assert metrics["response_length_non_aborted/clip_ratio"] == 0.5
