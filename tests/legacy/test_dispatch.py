"""Rows reach ranks so that mini-batches do not depend on the number of ranks, and come back in their order."""

from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict

from compat import tensordict_utils as tu
from compat.protocol import DataProto
from compat.single_controller import shards
from compat.single_controller.actors import RayClassWithInitArgs
from compat.single_controller.dispatch import PADDING_SIZE_KEY
from compat.single_controller.errors import WorkerGroupError
from legacy.dispatch import configured_plan, infer_collect, infer_dispatch, plan_of, update_dispatch, with_silent_rows
from legacy.settings import whole_config
from runtime.config import load_config
from runtime.errors import ConfigError
from runtime.workers.model_workers import UpdatePlan


@pytest.fixture(scope="module")
def config():
    overrides = ["actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.rollout.n=2"]
    return load_config("tiny", overrides).config


def group_of(config, ranks):
    worker = RayClassWithInitArgs(object, config=config.actor_rollout_ref)
    return SimpleNamespace(world_size=ranks, ray_cls_with_init=worker)


def numbered(rows, kind):
    columns = {"row": torch.arange(rows), "response_mask": torch.ones(rows, 3, dtype=torch.int64)}
    return DataProto.from_dict(columns) if kind is DataProto else TensorDict(columns, batch_size=rows)


def rows_of(data):
    return data["row"].tolist()


def test_a_mini_batch_counts_prompts_and_each_has_n_rows(config):
    assert configured_plan(config.actor_rollout_ref).mini_batch_rows == 4
    assert configured_plan(config.critic).mini_batch_rows == config.critic.ppo_mini_batch_size * 2


@pytest.mark.parametrize("kind", [DataProto, TensorDict])
@pytest.mark.parametrize("rows", [1, 3, 4, 7, 8])
@pytest.mark.parametrize("ranks", [1, 2])
def test_answers_come_back_in_the_order_of_the_batch(config, kind, rows, ranks):
    group = group_of(config, ranks)
    (parts,), more = infer_dispatch(group, numbered(rows, kind))
    assert len(parts) == ranks
    joined = infer_collect(group, parts)
    assert rows_of(shards.unpad(joined, more[PADDING_SIZE_KEY], "compute")) == list(range(rows))


def test_an_update_makes_the_mask_that_batches_had_not_up_to_0_3(config):
    data = DataProto.from_dict(
        {
            "responses": torch.ones(3, 2, dtype=torch.int64),
            "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 0]]),
        }
    )
    (parts,), _ = update_dispatch(group_of(config, 1), data)
    assert parts[0]["response_mask"].tolist() == [[1, 1], [1, 0], [1, 0], [0, 0]]
    assert "response_mask" not in data.batch
    data.batch["loss_mask"] = torch.tensor([[0, 1, 0], [0, 0, 1], [0, 1, 0]])
    (parts,), _ = update_dispatch(group_of(config, 1), data)
    assert parts[0]["response_mask"].tolist() == [[1, 0], [0, 1], [1, 0], [0, 0]]


@pytest.mark.parametrize("kind", [DataProto, TensorDict])
def test_the_k_th_slice_of_every_rank_is_its_share_of_mini_batch_k(config, kind):
    (parts,), _ = update_dispatch(group_of(config, 2), numbered(8, kind))
    assert [rows_of(part) for part in parts] == [[0, 1, 4, 5], [2, 3, 6, 7]]


@pytest.mark.parametrize("kind", [DataProto, TensorDict])
def test_a_last_mini_batch_is_filled_with_rows_that_weigh_nothing(kind):
    data = numbered(6, kind)
    filled = with_silent_rows(data, 4)
    assert rows_of(filled) == [0, 1, 2, 3, 4, 5, 0, 1]
    assert filled["response_mask"].sum(1).tolist() == [3] * 6 + [0] * 2
    assert data["response_mask"].sum() == 18  # the batch that was given is as it was
    assert with_silent_rows(data, 3) is data


def test_a_config_taken_out_of_its_whole_is_named():
    with pytest.raises(ConfigError, match="actor_rollout_ref"):
        whole_config({"actor": {}})


def test_a_tensordict_says_how_it_is_gone_over(config):
    plan = configured_plan(config.actor_rollout_ref)
    data = numbered(8, TensorDict)
    assert plan_of(numbered(8, DataProto), plan) == plan_of(data, plan) == plan
    tu.assign_non_tensor(data, mini_batch_size=8, epochs=3, seed=7, dataloader_kwargs={"shuffle": True})
    assert plan_of(data, plan) == UpdatePlan(8, 3, True, 7)
    (parts,), _ = update_dispatch(group_of(config, 2), data)
    assert [rows_of(part) for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert plan_of(parts[0], plan, ranks=2) == UpdatePlan(8, 3, True, 7)
    by_count = numbered(4, TensorDict)
    tu.assign_non_tensor(by_count, num_mini_batch=4)
    assert plan_of(by_count, plan, ranks=2).mini_batch_rows == 2


def test_a_config_given_by_place_serves_and_a_missing_one_is_named(config):
    group = group_of(config, 2)
    group.ray_cls_with_init = RayClassWithInitArgs(object, config.actor_rollout_ref, "actor")
    assert len(infer_dispatch(group, numbered(4, DataProto))[0][0]) == 2
    for worker in (None, RayClassWithInitArgs(object)):
        group.ray_cls_with_init = worker
        with pytest.raises(WorkerGroupError, match="RayClassWithInitArgs"):
            infer_dispatch(group, numbered(4, DataProto))
