"""Managers of both eras, built-in and a recipe's, on padded batches and as a trainer calls them."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from compat.protocol import DataProto
from compat.reward import managers, registry, response_managers
from compat.reward.adapters import BatchAdapter, call, per_batch, per_response, token_rewards
from compat.reward.helpers import compute_reward, extract_reward, get_custom_reward_fn, load_reward_manager
from compat.reward.loop_manager import migrate_legacy_reward_impl
from compat.reward.rows import one_row, reward_columns
from runtime.arrays import object_array
from runtime.errors import ConfigError, RewardError
from runtime.identity import TrajectoryKey
from runtime.reward import RewardItem, RewardStage
from runtime.reward import registry as core_registry
from runtime.tiny import make_tokenizer
from runtime.trajectories import TrajectoryBatch
from shared_algos.segments import Segments

TOKENIZER = make_tokenizer()
TEXTS = ["ab", "abcd", "x"]
WIDTH = 6


def ids(text: str) -> list[int]:
    return [*TOKENIZER.encode(text, add_special_tokens=False), TOKENIZER.eos_token_id]


def padded_batch() -> DataProto:
    rows = [ids(text) for text in TEXTS]
    pad = TOKENIZER.pad_token_id
    responses = torch.tensor([row + [pad] * (WIDTH - len(row)) for row in rows])
    exists = torch.tensor([[1] * len(row) + [0] * (WIDTH - len(row)) for row in rows])
    prompts = torch.tensor([[pad, *ids("q")]] * len(rows))
    mask = torch.cat([torch.tensor([[0, 1, 1]] * len(rows)), exists], dim=1)
    return DataProto.from_dict(
        {"prompts": prompts, "responses": responses, "attention_mask": mask},
        {
            "data_source": object_array(["verlift/toy_letters"] * len(rows)),
            "reward_model": object_array([{"ground_truth": "ab"}] * len(rows)),
            "extra_info": object_array([{"index": row} for row in range(len(rows))]),
        },
    )


def config(**reward):
    held = {
        "custom_reward_function": {"path": None, "name": "compute_score", "reward_kwargs": {}},
        "reward_manager": {
            "source": "register",
            "name": "naive",
            "module": {"path": None, "name": "custom_reward_manager"},
        },
        "reward_kwargs": {},
    }
    data = {"reward_fn_key": "data_source", "max_prompt_length": 4, "max_response_length": WIDTH}
    return OmegaConf.merge({"reward": held, "data": data}, {"reward": reward})


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    monkeypatch.setattr(core_registry, "_managers", dict(core_registry._managers))


@pytest.mark.parametrize("name", ["naive", "dapo", "prime", "gdpo", "remote", "rate_limited"])
def test_every_built_in_name_is_called_on_a_padded_batch(name):
    manager = load_reward_manager(config(reward_manager={"name": name}), TOKENIZER, num_examine=0)
    tensor, info = compute_reward(padded_batch(), manager)
    assert tensor.dtype == torch.float32
    assert tensor.sum(1).tolist() == [1.0, 0.5, 0.0]
    assert tensor[0, 2] == 1.0, "on the last response token, which is the end of text"
    assert info in ({}, {"acc": [1.0, 0.5, 0.0]})


@pytest.mark.parametrize("name", ["naive", "prime", "batch", "gdpo"])
def test_rewards_that_are_there_are_returned_as_they_are(name, tmp_path):
    (tmp_path / "f.py").write_text("def compute_score(data_sources, **_):\n    raise AssertionError\n")
    function = {"path": str(tmp_path / "f.py"), "name": "compute_score"}
    manager = load_reward_manager(
        config(reward_manager={"name": name}, custom_reward_function=function), TOKENIZER, num_examine=0
    )
    data = padded_batch()
    data.batch["rm_scores"] = torch.arange(3 * WIDTH).reshape(3, WIDTH).float()
    data.non_tensor_batch["acc"] = object_array([1, 2, 3])
    data.meta_info["reward_extra_keys"] = ["acc"]
    assert torch.equal(manager(data), data.batch["rm_scores"])
    made = manager(data, return_dict=True)
    assert list(made["reward_extra_info"]["acc"]) == [1, 2, 3]
    tensor, info = extract_reward(data)
    assert torch.equal(tensor, made["reward_tensor"])
    assert list(info["acc"]) == [1, 2, 3]


def test_the_old_layout_of_a_config_names_manager_function_and_arguments(tmp_path):
    (tmp_path / "f.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info=None, by=1):\n"
        "    return len(solution_str) / by\n"
    )
    old = OmegaConf.create(
        {
            "custom_reward_function": {
                "path": str(tmp_path / "f.py"),
                "name": "score",
                "reward_kwargs": {"by": 4},
            },
            "reward_model": {
                "reward_manager": "dapo",
                "reward_kwargs": {
                    "max_resp_len": 6,
                    "overlong_buffer_cfg": {"enable": True, "len": 2, "penalty_factor": 1.0, "log": False},
                },
            },
            "data": {"reward_fn_key": "data_source"},
        }
    )
    manager = load_reward_manager(old, TOKENIZER)
    assert type(manager) is managers.DAPORewardManager
    assert manager(padded_batch()).sum(1).tolist() == [0.5, 1.0 - 0.5, 0.25]
    assert get_custom_reward_fn(OmegaConf.create({"data": {}})) is None
    moved = migrate_legacy_reward_impl(OmegaConf.merge(config(), old))
    assert moved.reward.reward_manager.name == "dapo"
    assert moved.reward.custom_reward_function.reward_kwargs.by == 4
    assert "reward_model" not in moved
    assert load_reward_manager(moved, TOKENIZER)(padded_batch()).sum(1).tolist() == [0.5, 0.5, 0.25]


def test_both_registries_are_live_views_of_one():
    @registry.register("mine")
    class Mine(managers.AbstractRewardManager):
        def __init__(self, tokenizer, num_examine, compute_score, reward_fn_key="data_source"):
            pass

        def __call__(self, data, return_dict=False):  # noqa: ARG002
            return torch.ones(len(data), WIDTH)

    assert registry.get_reward_manager_cls("mine") is registry.get_response_manager_cls("mine") is Mine
    assert registry.get_reward_manager_cls("naive") is managers.NaiveRewardManager
    assert registry.get_response_manager_cls("naive") is response_managers.NaiveRewardManager
    assert core_registry.scores_batches(config(reward_manager={"name": "mine"}))
    with pytest.raises(ValueError, match=r"'yours'; there are .*'mine'"):
        registry.get_reward_manager_cls("yours")


def test_a_recipe_may_take_a_built_in_name_over_but_not_another_recipes(caplog):
    class First:
        def __call__(self, data):
            return data

    class Second(First):
        pass

    registry.register("naive")(First)
    assert "reward manager 'naive' is now" in caplog.text
    assert registry.get_reward_manager_cls("naive") is First
    registry.register("naive")(First)
    with pytest.raises(ConfigError, match="already"):
        registry.register("naive")(Second)


def test_a_manager_is_of_the_kind_that_it_defines():
    class Neither:
        pass

    class Both(response_managers.RewardManagerBase):
        async def run_single(self, data):  # noqa: ARG002
            return {"reward_score": 1.0}

    registry.register("neither")(Neither)
    registry.register("both")(Both)
    assert not core_registry.scores_batches(config(reward_manager={"name": "both"}))
    with pytest.raises(ConfigError, match="neither run_single"):
        core_registry.scores_batches(config(reward_manager={"name": "neither"}))


class Counting:
    """A manager of batches that returns what it is told to."""

    def __init__(self, *_, answer):
        self.answer = answer

    def __call__(self, data, return_dict=False):
        self.data = data
        return self.answer(data) if return_dict else None


def trajectories() -> TrajectoryBatch:
    rows = [ids("ab"), ids("abcd"), ids("x")]
    responses = Segments.from_lengths([len(row) for row in rows])
    prompts = Segments.from_lengths([2, 2, 2])
    packed = torch.tensor([token for row in rows for token in row])
    keys = (TrajectoryKey("u", 0, 0), TrajectoryKey("u", 0, 1), TrajectoryKey("v", 0, 0))
    shared = {"index": 0}
    return TrajectoryBatch(
        keys,
        prompts,
        responses,
        {"prompts": torch.tensor(ids("q") * 3), "responses": packed, "num_turns": torch.tensor([2, 2, 2])},
        {"data_source": object_array(["s"] * 3), "extra_info": object_array([shared, shared, {}])},
    )


def outcome(data):
    lengths = data.batch["attention_mask"][:, -WIDTH:].sum(1)
    rewards = torch.zeros(len(data), WIDTH)
    rewards[torch.arange(len(data)), lengths - 1] = lengths.float()
    for info in data.non_tensor_batch["extra_info"]:
        info["seen"] = len(data)
    return {"reward_tensor": rewards, "reward_extra_info": {"n": lengths.numpy()}}


def test_a_manager_of_batches_scores_the_last_output_of_each_session_for_all_of_them():
    manager = Counting(TOKENIZER, 0, answer=outcome)
    batch = trajectories()
    made = RewardStage(BatchAdapter(manager, (4, WIDTH), TOKENIZER))(batch)
    totals = batch.responses.sum(made.columns["token_level_scores"])
    assert totals.tolist() == [5, 5, 2], "the session's other output has its total"
    assert torch.equal(made.columns["rm_scores"], made.columns["token_level_scores"])
    assert list(made.objects["reward_extra_info"]) == [{"n": 5}, {"n": 5}, {"n": 2}]
    assert len(manager.data) == 2
    assert manager.data.batch["attention_mask"].shape == (2, 4 + WIDTH)
    assert manager.data.batch["prompts"].shape == (2, 4)
    assert list(manager.data.non_tensor_batch["__num_turns__"]) == [2, 2]
    assert batch.objects["extra_info"][0] == {"index": 0}, "what it writes into a row stays in its own copy"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda data: torch.ones(len(data), WIDTH - 1), r"returned \(2, 5\), expected \(2, 6\)"),
        (lambda data: torch.ones(len(data), WIDTH), "u_0_1 behind its last response token"),
        (lambda _: None, "returned NoneType"),
        (lambda data: [1.0] * len(data), r"returned list, expected \(2, 6\)"),
        (lambda data: outcome(data) | {"reward_extra_info": [{"acc": 1}] * 2}, "reward_extra_info .* is a list"),
        (lambda _: {"reward": 1}, "without 'reward_tensor'"),
        (lambda data: outcome(data) | {"reward_extra_info": {"n": [1]}}, r"'n'\] has 1 values for 2 rows"),
        (lambda data: data.batch["nothing"], "Counting raised KeyError"),
        (lambda data: outcome(data)["reward_tensor"] * float("nan"), "behind|rm_scores"),
    ],
)
def test_what_a_manager_of_batches_must_not_return_is_refused_with_its_name(answer, words):
    adapter = BatchAdapter(Counting(TOKENIZER, 0, answer=answer), (4, WIDTH), TOKENIZER)
    with pytest.raises(RewardError, match=words):
        RewardStage(adapter)(trajectories())


def test_a_nan_is_refused_with_its_trajectory():
    def with_nan(data):
        rewards = outcome(data)["reward_tensor"]
        rewards[1, 0] = float("nan")
        return rewards

    adapter = BatchAdapter(Counting(TOKENIZER, 0, answer=with_nan), (4, WIDTH), TOKENIZER)
    with pytest.raises(RewardError, match="rm_scores of trajectory v_0_0 hold nan"):
        RewardStage(adapter)(trajectories())


def test_managers_are_built_with_the_arguments_of_their_time():
    class First:
        def __init__(self, tokenizer, num_examine, compute_score=None):
            self.arguments = (tokenizer, num_examine, compute_score)

        def __call__(self, data):
            return torch.zeros(len(data), WIDTH)

    adapter = per_batch(First, config(), TOKENIZER, len, {})
    assert adapter.manager.arguments == (TOKENIZER, 0, len)
    assert call(adapter.manager, padded_batch())[1] == {}
    with pytest.raises(ConfigError, match=r"First does not take \['weight'\]"):
        per_batch(First, config(), TOKENIZER, len, {"weight": 1})

    class Wants(First):
        def __init__(self, tokenizer, judge):
            pass

    with pytest.raises(ConfigError, match=r"needs \['judge'\]"):
        per_batch(Wants, config(), TOKENIZER, len, {})


def test_a_manager_of_one_response_gets_its_row_and_may_change_it():
    class Turns(response_managers.NaiveRewardManager):
        async def run_single(self, data):
            found = await super().run_single(data)
            data.non_tensor_batch["extra_info"][0]["index"] = "changed"
            turns = data.non_tensor_batch["__num_turns__"][0]
            return {"reward_score": found["reward_score"] + turns, "reward_extra_info": found["reward_extra_info"]}

    adapter = per_response(Turns, config(), TOKENIZER, lambda solution_str, **_: len(solution_str), {})
    sample = {"data_source": "s", "reward_model": {"ground_truth": "ab"}, "extra_info": {"index": 7}}
    item = RewardItem(ids("abc"), sample, num_turns=2, where="a.parquet row 3", prompt_ids=ids("q"))
    result = asyncio.run(adapter.run_single(item))
    assert (result.reward_score, result.reward_extra_info) == (5.0, {"acc": 3})
    assert sample["extra_info"] == {"index": 7}
    row = one_row(item)
    assert row.batch["input_ids"].tolist() == [ids("q") + ids("abc")]
    assert row.batch["attention_mask"].shape == (1, 6)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ({"score": 1}, "expected a dict with 'reward_score'"),
        (1.0, "expected a dict"),
        ({"reward_score": None}, "finite"),
    ],
)
def test_what_run_single_must_not_return_is_refused_with_the_row(returned, words):
    class Odd:
        def __init__(self, config, tokenizer, compute_score):
            pass

        async def run_single(self, data):  # noqa: ARG002
            return returned

    adapter = per_response(Odd, config(), TOKENIZER, len, {})
    with pytest.raises(RewardError, match=rf"Odd returned .*a\.parquet row 3.*{words}"):
        asyncio.run(adapter.run_single(RewardItem([5], {}, where="a.parquet row 3")))


def test_results_of_a_reward_function_become_columns():
    results = {
        "acc": [1.0, 0.0],
        "pred": ("a", None),
        "tensor": torch.tensor([1, 2]),
        "vectors": [[1, 2], [3, 4]],
        "ragged": [[1, 2], [3]],
        "dicts": [{"a": 1}, {}],
        "mean": 0.5,
        "scalar": torch.tensor(1.0),
        "text": "ab",
        "short": [1],
        "range": range(2),
        "by name": {"a": 1, "b": 2},
        "none": None,
    }
    columns = reward_columns(results, 2)
    assert list(columns) == ["acc", "pred", "tensor", "vectors", "ragged", "dicts", "range"]
    assert {name: column.tolist() for name, column in columns.items()} == {
        "acc": [1.0, 0.0],
        "pred": ["a", None],
        "tensor": [1, 2],
        "vectors": [[1, 2], [3, 4]],
        "ragged": [[1, 2], [3]],
        "dicts": [{"a": 1}, {}],
        "range": [0, 1],
    }
    assert all(len(column) == 2 for column in columns.values())


@pytest.mark.parametrize(
    "returned", [torch.tensor([[0, 1]]), torch.tensor([[0.0, 1.0]]).requires_grad_(), np.array([[0.0, 1.0]])]
)
def test_rewards_of_any_kind_of_number_become_a_tensor_without_a_graph(returned):
    data = DataProto.from_dict({"responses": torch.ones(1, 2, dtype=torch.int64)})
    rewards = token_rewards(returned, data, "it")
    assert rewards.is_floating_point()
    assert not rewards.requires_grad
    assert rewards.tolist() == [[0.0, 1.0]]


def test_the_tensor_may_stand_beside_the_dict():
    data = DataProto.from_dict({"responses": torch.ones(1, 2, dtype=torch.int64)})
    assert compute_reward(data, lambda _: ("the tensor", {"acc": [1]})) == ("the tensor", {"acc": [1]})
