"""Rows of recipes become sessions, and the answer has what their loops read."""

import asyncio

import numpy as np
import pytest
import torch

from compat.errors import MissingColumnError
from compat.protocol import DataProto
from legacy.gen_batch import answer_in_kind, is_repeated, session_requests
from runtime.arrays import object_array
from runtime.config import load_config
from runtime.rollout.server import RolloutServer


@pytest.fixture(scope="module")
def config():
    return load_config("tiny").config


def token_rows(*rows):
    """Left-padded prompts as verl's dataset made them up to 0.6."""
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, width - len(row) :] = torch.tensor(row)
        mask[number, width - len(row) :] = 1
    return DataProto.from_dict(tensors={"input_ids": ids, "attention_mask": mask})


class Counted:
    """The server's count of prompts, without the server's generator."""

    def __init__(self):
        self._counted_step, self._prompts = {}, {}

    def __call__(self, *arguments):
        return asyncio.run(RolloutServer.count_prompts(self, *arguments))


def requests_of(prompts, config, step=1, count=None):
    return session_requests(prompts, config, step, count or Counted())


def places(requests):
    return [(submission.position, session) for submission, session, _ in requests]


def seeds(requests):
    return [submission.identity.request_seed(session) for submission, session, _ in requests]


def test_rows_of_one_prompt_are_its_sessions_whatever_their_order(config):
    prompts = token_rows([1, 2], [3], [1, 2], [3], [1, 2])
    requests = requests_of(prompts, config)
    assert places(requests) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]
    assert [submission.sample["raw_prompt_ids"] for submission, _, _ in requests] == [[1, 2], [3], [1, 2], [3], [1, 2]]


def test_a_uid_tells_equal_prompts_apart(config):
    prompts = token_rows([1], [1])
    prompts.non_tensor_batch["uid"] = object_array(["a", "b"])
    assert places(requests_of(prompts, config)) == [(0, 0), (1, 0)]


def test_no_two_of_768_rows_share_a_seed_in_any_call_of_any_step(config):
    prompts = token_rows(*([number] for number in range(192))).repeat(4)
    count = Counted()
    drawn = [
        *(seeds(requests_of(prompts, config, 1, count)) for _ in range(2)),
        seeds(requests_of(prompts, config, 2, count)),
    ]
    assert len({seed for of_call in drawn for seed in of_call}) == 3 * 768
    # A run that was resumed before step 2 has counted nothing yet.
    assert drawn[2] == seeds(requests_of(prompts, config, 2))


def test_validation_in_between_changes_no_seed_of_training(config):
    prompts, validation, count = token_rows([1], [2]), token_rows([1]), Counted()
    validation.meta_info["validate"] = True
    requests_of(prompts, config, 1, count)
    requests_of(validation, config, 1, count)
    again = seeds(requests_of(prompts, config, 1, count))
    alone = Counted()
    requests_of(prompts, config, 1, alone)
    assert again == seeds(requests_of(prompts, config, 1, alone))


def test_equal_dataset_rows_under_two_uids_do_not_share_a_seed(config):
    prompts = token_rows([1], [1])
    prompts.non_tensor_batch |= {"uid": object_array(["a", "b"]), "row_number": object_array([7, 7])}
    assert len(set(seeds(requests_of(prompts, config)))) == 2


def test_greedy_rows_and_greedy_calls(config):
    prompts = token_rows([1], [2])
    prompts.non_tensor_batch["__do_sample__"] = np.array([True, False])
    assert [params.do_sample for *_, params in requests_of(prompts, config)] == [True, False]
    assert "__do_sample__" not in requests_of(prompts, config)[0][0].sample
    prompts = token_rows([1])
    prompts.meta_info["do_sample"] = False
    assert [params.do_sample for *_, params in requests_of(prompts, config)] == [False]


def test_validation_has_its_own_parameters_and_seeds(config):
    train, val = token_rows([1]), token_rows([1])
    val.meta_info["validate"] = True
    assert seeds(requests_of(train, config)) != seeds(requests_of(val, config))
    (_, _, params) = requests_of(val, config)[0]
    assert params.do_sample == config.actor_rollout_ref.rollout.val_kwargs.do_sample


def test_rows_without_a_prompt_are_refused_by_what_they_lack(config):
    with pytest.raises(MissingColumnError, match=r"raw_prompt.*attention_mask"):
        requests_of(DataProto.from_dict(tensors={"input_ids": torch.ones(1, 1)}), config)


@pytest.mark.parametrize(
    ("rows", "n", "repeated"),
    [([[1], [2]], 2, False), ([[1], [1], [2], [2]], 2, True), ([[1], [2], [1], [2]], 2, True), ([[1], [2]], 1, True)],
)
def test_prompts_that_a_recipe_has_repeated_are_known(rows, n, repeated):
    assert is_repeated(token_rows(*rows), n, prompts_a_step=64) is repeated


def test_a_batch_as_large_as_the_loaders_is_not_repeated_whatever_it_says():
    twice_in_the_file = token_rows([1], [1], [2], [2])
    assert not is_repeated(twice_in_the_file, 2, prompts_a_step=4)
    with_a_uid_a_row = token_rows([1], [1], [2], [2])
    with_a_uid_a_row.non_tensor_batch["uid"] = object_array(list("abcd"))
    assert is_repeated(with_a_uid_a_row, 2, prompts_a_step=2)
    assert is_repeated(with_a_uid_a_row, 2, prompts_a_step=64)


def played(rows, infos=None):
    columns = {"prompts": torch.ones(rows, 2), "num_turns": torch.full((rows,), 2), "rm_scores": torch.ones(rows, 3)}
    objects = {"uid": object_array([f"ours{row}" for row in range(rows)]), "session_id": object_array([0] * rows)}
    if infos is not None:
        objects["reward_extra_info"] = object_array(infos)
    return DataProto.from_dict(tensors=columns, non_tensors=objects)


def test_the_answer_unites_with_the_recipes_batch():
    batch = token_rows([1], [2])
    batch.non_tensor_batch["uid"] = object_array(["a", "b"])
    answer = answer_in_kind(batch, played(2, [{"acc": 1.0}, {"acc": 0.0}]), seconds=1.5)
    united = batch.union(answer)
    assert united.non_tensor_batch["uid"].tolist() == ["a", "b"]
    assert united.non_tensor_batch["acc"].tolist() == [1.0, 0.0]
    assert united.non_tensor_batch["__num_turns__"].tolist() == [2, 2]
    assert [dict(row) for row in united.non_tensor_batch["multi_modal_inputs"]] == [{}, {}]
    assert answer.meta_info["timing"] == {"generate_sequences": 1.5}
    assert answer.meta_info["reward_extra_keys"] == ["acc"]


def test_the_answer_to_rows_without_uid_has_none():
    answer = answer_in_kind(token_rows([1]), played(1), seconds=0.0)
    assert "uid" not in answer.non_tensor_batch
    assert "session_id" not in answer.non_tensor_batch


def test_an_extra_info_that_a_row_has_already_stays_the_rows():
    batch = token_rows([1])
    batch.non_tensor_batch["acc"] = object_array(["mine"])
    answer = answer_in_kind(batch, played(1, [{"acc": 1.0, "len": 3}]), seconds=0.0)
    assert answer.meta_info["reward_extra_keys"] == ["len"]
    assert batch.union(answer).non_tensor_batch["acc"].tolist() == ["mine"]
