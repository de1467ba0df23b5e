"""Batch-level managers under verl's names give verl 0.9.1's rewards and extra info for the same padded batch."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from compat.protocol import DataProto
from compat.reward.registry import get_reward_manager_cls
from runtime.arrays import object_array

pytestmark = pytest.mark.oracle

FOLDER = Path(__file__).parents[2] / ".oracle"
SIDE = Path(__file__).with_name("reward_side.py")
side = runpy.run_path(str(SIDE))

TEXTS = ["abc", "a", "abcdefgh", "xyzw"]
WIDTH = 8
OBJECTS = {
    "data_source": ["one", "two", "one", "two"],
    "reward_model": [{"ground_truth": text[:3]} for text in TEXTS],
    "extra_info": [{"index": row} for row in range(len(TEXTS))],
}
CASES = {
    "naive": {},
    "dapo": {
        "max_resp_len": 8,
        "overlong_buffer_cfg": {"enable": True, "len": 5, "penalty_factor": 1.5, "log": True},
    },
    "batch": {"bonus": 0.5},
    "prime": {},
}


def tensors() -> dict[str, torch.Tensor]:
    codes = [[ord(letter) for letter in text] for text in TEXTS]
    responses = torch.tensor([row + [0] * (WIDTH - len(row)) for row in codes])
    prompts = torch.tensor([[0, 65, 66]] * len(TEXTS))
    mask = torch.cat([(prompts > 0).long(), (responses > 0).long()], dim=1)
    return {"prompts": prompts, "responses": responses, "attention_mask": mask}


@pytest.fixture(scope="module")
def verl(process_of_verl) -> Iterator[Callable[..., Any]]:
    with process_of_verl("reward_side.py") as call:
        yield call


@pytest.mark.parametrize("name", [name for name in CASES if name != "prime"])
def test_rewards_and_extra_info(name, verl):
    expected, expected_info = verl("manager", name=name, tensors=tensors(), objects=OBJECTS, keywords=CASES[name])
    data = DataProto.from_dict(tensors(), {key: object_array(list(map(copied, v))) for key, v in OBJECTS.items()})
    function = side["score_lengths" if name == "batch" else "score_length"]
    manager = get_reward_manager_cls(name)(side["Letters"](), 0, compute_score=function, **CASES[name])
    made = manager(data, return_dict=True)
    # verl adds the penalty in float32, we in float64.
    torch.testing.assert_close(made["reward_tensor"], expected, rtol=0, atol=1e-6)
    assert made["reward_tensor"].count_nonzero() == len(TEXTS)
    assert set(made["reward_extra_info"]) == set(expected_info)
    for key, values in expected_info.items():
        assert [float(value) for value in made["reward_extra_info"][key]] == pytest.approx(list(map(float, values)))
    assert torch.equal(manager(data), made["reward_tensor"])


def copied(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value
