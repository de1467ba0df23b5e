"""Inference and training under FSDP2, on one rank in process and on two gloo ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from runtime.engine.micro_batches import WHOLE, RowLimit, TokenLimit
from runtime.engine.spec import actor_spec, critic_spec, ref_spec
from runtime.errors import BatchSizeError, ConfigError

LOSSES = ("token-mean", "norm", "seq-mean", "critic", "clip_cov", "kl_cov", "bypass")


@pytest.fixture(scope="module")
def whole_steps(scenarios: ModuleType, tiny_model: str) -> dict[str, Any]:
    """One step a loss with the mini-batch in one piece: what every split must give."""
    return {loss: scenarios.one_step(tiny_model, loss, "all") for loss in LOSSES}


def assert_same_step(step: dict[str, Any], whole: dict[str, Any]) -> None:
    """Losses and metrics to the bit, gradients within 1e-6 (measured: 6e-8) and so the weights."""
    norm = next(name for name in whole["metrics"] if name.endswith("grad_norm"))
    assert step["metrics"][norm] == pytest.approx(whole["metrics"][norm], rel=1e-6)
    assert step["metrics"] | {norm: 0} == whole["metrics"] | {norm: 0}
    for name, gradient in whole["gradients"].items():
        torch.testing.assert_close(step["gradients"][name], gradient, rtol=0, atol=1e-6)
    for name, weight in whole["weights"].items():
        np.testing.assert_allclose(step["weights"][name], weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("limit", ["1 row", "2 rows", "3 rows", "tokens"])
def test_a_mini_batch_gives_the_same_step_however_it_is_split(
    loss: str, limit: str, scenarios: ModuleType, tiny_model: str, whole_steps: dict[str, Any]
) -> None:
    assert_same_step(scenarios.one_step(tiny_model, loss, limit), whole_steps[loss])


@pytest.mark.parametrize(
    ("loss", "limit"),
    [
        ("token-mean", "1 row"),
        ("token-mean", "2 rows"),
        ("token-mean", "tokens"),
        ("norm", "2 rows"),
        ("critic", "2 rows"),
        ("clip_cov", "2 rows"),
        ("kl_cov", "2 rows"),
        ("bypass", "2 rows"),
    ],
)
def test_two_ranks_take_the_same_step_as_one(
    loss: str, limit: str, two_ranks: list[dict[str, Any]], whole_steps: dict[str, Any]
) -> None:
    first, second = (results[f"{loss}/{limit}"] for results in two_ranks)
    assert_same_step(first, whole_steps[loss])
    assert second["metrics"] == first["metrics"]
    assert second["weights"] == {}


def test_gradients_are_not_zero(whole_steps: dict[str, Any]) -> None:
    for step in whole_steps.values():
        assert all(gradient.abs().max() > 1e-5 for gradient in step["gradients"].values())


def test_losses_that_look_at_the_whole_mini_batch_decide_something(whole_steps: dict[str, Any]) -> None:
    assert whole_steps["clip_cov"]["metrics"]["actor/pg_clipfrac"] > 0
    assert 0 < whole_steps["bypass"]["metrics"]["rollout_corr/rollout_rs_masked_fraction"] < 1
    plain = whole_steps["token-mean"]["metrics"]["actor/loss"]
    assert all(whole_steps[name]["metrics"]["actor/loss"] != plain for name in ("clip_cov", "kl_cov", "bypass"))


def test_draws_follow_their_seed(scenarios: ModuleType, tiny_model: str) -> None:
    def loss_of(draw: tuple[int, int, int]) -> float:
        spec, loss = scenarios.make_loss("clip_cov", scenarios.make_config(tiny_model, *scenarios.LOSSES["clip_cov"]))
        return scenarios.make_engine(spec).train_mini_batch(scenarios.make_batch(), loss, draw=draw)["actor/loss"]

    assert loss_of((1, 0, 0)) == loss_of((1, 0, 0))
    assert len({loss_of(draw) for draw in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1))}) == 4


def test_ranks_with_fewer_rows_take_part_without_changing_anything(
    scenarios: ModuleType, tiny_model: str, two_ranks: list[dict[str, Any]]
) -> None:
    alone = scenarios.make_engine(actor_spec(scenarios.make_config(tiny_model))).infer(scenarios.make_batch(), 0.7)
    together = torch.cat([results["uneven infer"] for results in two_ranks])
    assert torch.equal(together, alone["log_probs"])


def test_a_new_value_head_is_the_same_on_any_number_of_ranks(
    scenarios: ModuleType, tiny_model: str, two_ranks: list[dict[str, Any]]
) -> None:
    assert (
        scenarios.make_engine(critic_spec(scenarios.make_config(tiny_model))).digest() == two_ranks[0]["initial critic"]
    )


def test_a_figure_of_one_rank_alone_counts_nothing_on_the_others(two_ranks: list[dict[str, Any]]) -> None:
    assert [results["figures"] for results in two_ranks] == 2 * [{"of both": 3.5, "of the second": 4.0}]


@pytest.mark.parametrize("role", ["policy", "value"])
def test_inference_puts_every_row_back_in_its_place(role: str, scenarios: ModuleType, tiny_model: str) -> None:
    spec = (actor_spec if role == "policy" else critic_spec)(scenarios.make_config(tiny_model))
    batch = scenarios.make_batch()
    whole = scenarios.make_engine(replace(spec, infer_limit=WHOLE)).infer(batch, 0.7)
    assert set(whole) == ({"log_probs", "entropy"} if role == "policy" else {"values"})
    for limit in (TokenLimit(20), TokenLimit(1), RowLimit(1), RowLimit(4)):
        split = scenarios.make_engine(replace(spec, infer_limit=limit)).infer(batch, 0.7)
        assert all(torch.equal(split[name], whole[name]) for name in whole), limit


def test_the_padded_forward_agrees(scenarios: ModuleType, tiny_model: str) -> None:
    packed = actor_spec(scenarios.make_config(tiny_model))
    padded = actor_spec(scenarios.make_config(tiny_model, "actor_rollout_ref.actor.use_remove_padding=false"))
    assert packed.model.use_remove_padding
    assert not padded.model.use_remove_padding
    first, second = (scenarios.make_engine(spec).infer(scenarios.make_batch(), 0.7) for spec in (packed, padded))
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=2e-6)


@pytest.mark.parametrize("reshard", [True, False])
def test_training_sees_the_weights_it_changed(reshard: bool, scenarios: ModuleType, tiny_model: str) -> None:
    """Inference before and after a step reads other weights, and those the rollout is given."""
    override = f"actor_rollout_ref.actor.fsdp_config.reshard_after_forward={reshard}"
    spec, loss = scenarios.make_loss("token-mean", scenarios.make_config(tiny_model, override))
    engine, batch = scenarios.make_engine(spec), scenarios.make_batch()
    before = engine.infer(batch)["log_probs"]
    assert all(isinstance(parameter, DTensor) for parameter in engine.model.parameters())
    engine.train_mini_batch(batch, loss)
    after = engine.infer(batch)["log_probs"]
    assert not torch.equal(before, after)
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    weights = {name: torch.from_numpy(array) for name, array in engine.full_state_dict().items()}
    missing = model.load_state_dict(weights, strict=False)
    assert missing.missing_keys == ["lm_head.weight"]  # tied: it comes once, as the embedding
    assert missing.unexpected_keys == []
    ids = batch.sequences.split(batch["input_ids"])[0]
    plain = model(ids[None]).logits[0].log_softmax(-1)[3:-1].gather(1, ids[4:, None]).squeeze(1)
    torch.testing.assert_close(after[:3], plain, rtol=0, atol=2e-6)


@pytest.mark.parametrize("loss_name", ["token-mean", "critic"])
def test_bfloat16_computes_on_float32_weights(loss_name: str, scenarios: ModuleType, tiny_model: str) -> None:
    half = ("actor_rollout_ref.actor.fsdp_config.dtype=bfloat16", "critic.fsdp.dtype=bfloat16")
    spec, loss = scenarios.make_loss(loss_name, scenarios.make_config(tiny_model, *half))
    exact = scenarios.make_engine(replace(spec, model=replace(spec.model, compute_dtype=torch.float32)))
    engine, batch = scenarios.make_engine(spec), scenarios.make_batch()
    for name, column in engine.infer(batch).items():
        assert column.dtype == torch.float32
        torch.testing.assert_close(column, exact.infer(batch)[name], rtol=0, atol=0.05)
    assert math.isfinite(engine.train_mini_batch(batch, loss)[f"{loss.prefix}/grad_norm"])
    assert all(parameter.dtype == torch.float32 for parameter in engine.model.parameters())


def test_weights_are_those_of_the_file_before_any_step(scenarios: ModuleType, tiny_model: str) -> None:
    weights = scenarios.make_engine(ref_spec(scenarios.make_config(tiny_model))).full_state_dict()
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    assert list(weights) == [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        np.testing.assert_array_equal(weights[name], parameter.detach().numpy())


@pytest.mark.parametrize("loss_name", ["token-mean", "critic"])
def test_a_mini_batch_of_padding_only_changes_nothing(loss_name: str, scenarios: ModuleType, tiny_model: str) -> None:
    config = scenarios.make_config(
        tiny_model, "actor_rollout_ref.actor.optim.weight_decay=0", "critic.optim.weight_decay=0"
    )
    spec, loss = scenarios.make_loss(loss_name, config)
    engine, batch = scenarios.make_engine(spec), scenarios.make_batch()
    before = engine.digest()
    empty = batch.with_columns({"response_mask": torch.zeros_like(batch["response_mask"])})
    metrics = engine.train_mini_batch(empty, loss)
    assert {value for name, value in metrics.items() if name != "actor/kl_coef"} == {0.0}
    assert engine.digest() == before


@pytest.mark.parametrize("loss_name", ["token-mean", "norm", "critic"])
def test_padding_rows_weigh_nothing(
    loss_name: str, scenarios: ModuleType, tiny_model: str, whole_steps: dict[str, Any]
) -> None:
    """Rows whose mask is zero, NaN in every column included, add to no loss, metric or gradient."""
    batch, more = scenarios.make_batch(), scenarios.make_batch(seed=1)
    rows = batch.select([0, 1, 2, 3, 4, 5, 0, 1])
    start = batch.responses.num_tokens
    columns = {}
    for name in ("old_log_probs", "ref_log_prob", "advantages", "returns", "values"):
        columns[name] = rows[name].clone()
        columns[name][start:] = math.nan
    columns["response_mask"] = rows["response_mask"].clone()
    columns["response_mask"][start:] = 0
    columns["input_ids"] = rows["input_ids"].clone()
    columns["input_ids"][batch.sequences.num_tokens :] = more["input_ids"][: int(rows.sequences.lengths[6:].sum())]
    spec, loss = scenarios.make_loss(loss_name, scenarios.make_config(tiny_model, *scenarios.LOSSES[loss_name]))
    engine = scenarios.make_engine(spec)
    metrics = engine.train_mini_batch(rows.with_columns(columns), loss, temperature=0.7)
    step = {"metrics": metrics, "gradients": scenarios.gradients(engine), "weights": engine.full_state_dict()}
    assert_same_step(step, whole_steps[loss_name])


def test_a_loss_that_is_not_finite_skips_the_update(scenarios: ModuleType, tiny_model: str) -> None:
    spec, loss = scenarios.make_loss("token-mean", scenarios.make_config(tiny_model))
    engine, batch = scenarios.make_engine(spec), scenarios.make_batch()
    before = engine.digest()
    bad = batch.with_columns({"advantages": torch.full_like(batch["advantages"], math.inf)})
    metrics = engine.train_mini_batch(bad, loss)
    assert not math.isfinite(metrics["actor/grad_norm"])
    assert metrics["actor/update_skipped"] == 1
    assert engine.digest() == before


@pytest.mark.parametrize("loss_name", ["token-mean", "critic"])
def test_training_lowers_the_loss(loss_name: str, scenarios: ModuleType, tiny_model: str) -> None:
    rates = [f"{group}.optim.lr=3e-3" for group in ("actor_rollout_ref.actor", "critic")]
    spec, loss = scenarios.make_loss(loss_name, scenarios.make_config(tiny_model, *rates))
    engine, batch = scenarios.make_engine(spec), scenarios.make_batch()
    current = engine.infer(batch)
    if loss_name == "critic":
        batch = batch.with_columns({"values": current["values"]})
    else:
        batch = batch.with_columns({"old_log_probs": current["log_probs"], "ref_log_prob": current["log_probs"]})
    losses = [step[f"{loss.prefix}/loss"] for step in engine.train(batch, 6, loss, epochs=15)]
    assert losses[-1] < losses[0] - 0.1


def test_mini_batches_come_in_order_and_epochs_repeat_them(scenarios: ModuleType, tiny_model: str) -> None:
    seen = record_mini_batches(scenarios, tiny_model, epochs=2)
    assert seen == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3], [4, 5]]


def test_a_shuffle_depends_on_seed_and_epoch_alone(scenarios: ModuleType, tiny_model: str) -> None:
    first = record_mini_batches(scenarios, tiny_model, epochs=2, shuffle=True, seed=1)
    assert first == record_mini_batches(scenarios, tiny_model, epochs=2, shuffle=True, seed=1)
    assert first != record_mini_batches(scenarios, tiny_model, epochs=2, shuffle=True, seed=2)
    assert first[:3] != first[3:]
    assert sorted(chain(*first[:3])) == sorted(chain(*first[3:])) == list(range(6))


def record_mini_batches(scenarios: ModuleType, model: str, **arguments: Any) -> list[list[int]]:
    """Which rows each mini-batch held, told by their prompt lengths."""
    spec, loss = scenarios.make_loss("token-mean", scenarios.make_config(model))
    engine = scenarios.make_engine(replace(spec, train_limit=WHOLE))
    seen: list[list[int]] = []

    class Recorder:
        prefix, horizon, needs_entropy, constants = loss.prefix, loss.horizon, loss.needs_entropy, loss.constants
        selects_by, select = loss.selects_by, loss.select

        def __call__(self, outputs: Any, batch: Any, denominators: Any) -> Any:
            seen.append([scenarios.PROMPT_LENGTHS.index(length) for length in batch.prompts.lengths.tolist()])
            return loss(outputs, batch, denominators)

    engine.train(scenarios.make_batch(), 2, Recorder(), **arguments)
    return seen


def test_the_schedule_moves_once_a_training_step(scenarios: ModuleType, tiny_model: str) -> None:
    optim = "actor_rollout_ref.actor.optim"
    config = scenarios.make_config(tiny_model, f"{optim}.lr=0.01", f"{optim}.lr_warmup_steps=4")
    spec, loss = scenarios.make_loss("token-mean", config)
    engine = scenarios.make_engine(spec)
    before = engine.digest()
    engine.train(scenarios.make_batch(), 3, loss)
    assert engine.digest() == before  # the first step of a warm-up is at 0, for both mini-batches
    assert engine.lr_step() == pytest.approx(0.01 / 4)
    engine.train(scenarios.make_batch(), 3, loss)
    assert engine.digest() != before


def test_rows_that_do_not_divide_are_refused_with_both_numbers(scenarios: ModuleType, tiny_model: str) -> None:
    spec, loss = scenarios.make_loss("token-mean", scenarios.make_config(tiny_model))
    engine = scenarios.make_engine(spec)
    with pytest.raises(BatchSizeError, match="6 trajectories do not divide into mini-batches of 4"):
        engine.train(scenarios.make_batch(), 4, loss)
    with pytest.raises(BatchSizeError, match="rank 0 has no rows"):
        engine.infer(scenarios.make_batch().select([]))


def test_a_reference_only_infers(scenarios: ModuleType, tiny_model: str) -> None:
    config = scenarios.make_config(tiny_model)
    engine = scenarios.make_engine(ref_spec(config))
    with pytest.raises(ConfigError, match="only infers"):
        engine.train_mini_batch(scenarios.make_batch(), scenarios.make_loss("token-mean", config)[1])
    with pytest.raises(ConfigError, match="no learning rate"):
        engine.lr_step()
