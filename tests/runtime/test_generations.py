"""What was played, one a session, as files and figures show it."""

import json

import numpy as np
import pytest
import torch

from runtime.arrays import object_array
from runtime.errors import ConfigError
from runtime.generations import Generations, samples_to_show, write_generations
from runtime.identity import TrajectoryKey
from runtime.trajectories import TrajectoryBatch
from shared_algos.segments import Segments


class Letters:
    """Decodes ids as letters from ``a``."""

    def batch_decode(self, rows, skip_special_tokens):
        assert skip_special_tokens
        return ["".join(chr(97 + int(token)) for token in row) for row in rows]


def batch(infos=None):
    """Two prompts: the first played twice, its second session with two outputs; the second once."""
    keys = (TrajectoryKey("p", 0, 0), TrajectoryKey("p", 1, 0), TrajectoryKey("p", 1, 1), TrajectoryKey("q", 0, 0))
    objects = {
        "data_source": object_array(["math"] * 4),
        "reward_model": object_array([{"ground_truth": "b"}] * 3 + [None]),
    }
    if infos is not None:
        objects["reward_extra_info"] = object_array(infos)
    return TrajectoryBatch(
        keys=keys,
        prompts=Segments.from_lengths([1, 1, 1, 2]),
        responses=Segments.from_lengths([2, 1, 2, 1]),
        columns={
            "prompts": torch.tensor([0, 0, 0, 1, 2]),
            "responses": torch.tensor([1, 2, 3, 4, 5, 6]),
            "rm_scores": torch.tensor([0.0, 1.0, 0.5, 0.0, 0.5, 0.25]),
            "num_turns": torch.tensor([2, 2, 4, 2]),
        },
        objects=objects,
    )


def test_a_session_is_its_last_output():
    played = Generations.of(batch(), Letters())
    assert played.outputs == ["bc", "ef", "g"]
    assert played.inputs == ["a", "a", "bc"]
    assert played.scores == [1.0, 0.5, 0.25]
    assert played.ground_truths == ["b", "b", None]
    assert played.turns == [2, 4, 2]


def test_figures_are_of_numbers_and_nothing_of_nothing():
    infos = [{"acc": np.float32(1.0), "why": ["a", "list"], "text": "x"}, {}, {"acc": 0.0}, {"acc": 0.0, "text": "y"}]
    figures = Generations.of(batch(infos), Letters()).figures()
    assert figures["val-core/math/acc/mean@2"] == 0.5
    assert figures["val-aux/math/acc/mean@1"] == 0.0  # of the prompt that was played once
    assert figures["val-aux/math/reward/mean@2"] == 0.75
    assert not [name for name in figures if "why" in name or "text" in name]
    assert figures["val-aux/num_turns/max"] == 4
    assert Generations().figures() == {}


def test_parts_come_together_in_order_and_are_written_whole(tmp_path):
    one, other = Generations.of(batch(), Letters()), Generations.of(batch([{"why": ["a", 1]}] * 4), Letters())
    played = Generations.together([one, other])
    write_generations(tmp_path / "new" / "3.jsonl", played.columns(step=3))
    rows = [json.loads(line) for line in (tmp_path / "new" / "3.jsonl").read_text().splitlines()]
    assert [row["output"] for row in rows] == one.outputs * 2
    assert rows[0]["why"] is None
    assert rows[3]["why"] == ["a", 1]
    assert rows[0] | {"why": None} == {
        "input": "a",
        "output": "bc",
        "gts": "b",
        "score": 1.0,
        "step": 3,
        "why": None,
    }


def test_samples_are_of_the_same_prompts_whatever_their_order():
    prompts, answers, scores = [f"p{n}" for n in range(9)], list("abcdefghi"), [0.5] * 9
    assert samples_to_show(prompts, answers, scores, 3) == samples_to_show(prompts[::-1], answers[::-1], scores, 3)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/3\.jsonl cannot be written.*rollout_data_dir"):
        write_generations(tmp_path / "file" / "3.jsonl", {"input": ["a"]})
