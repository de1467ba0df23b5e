"""Policy losses with verl's signatures, run by the core on packed micro-batches."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from omegaconf import OmegaConf

from compat.algorithms import agg_loss, get_policy_loss_fn, register_policy_loss
from compat.algorithms import mini_batch as mini_batches
from compat.algorithms import torch_functional as verl_F
from compat.errors import CustomFunctionError
from runtime.config import load_config
from runtime.errors import ConfigError
from shared_algos.aggregation import AGGREGATIONS, Denominators
from shared_algos.errors import DuplicateAlgorithmError, MissingInputError, UnknownAlgorithmError
from shared_algos.policy_losses import POLICY_LOSSES, PolicyLossConfig

SEEDS = range(200)
SAME_AS_VANILLA = ["recipe_ppo", "recipe_dapo", "recipe_wrapping"]
AGGREGATED = [*SAME_AS_VANILLA, "recipe_by_position"]
PLAIN = OmegaConf.create(
    {
        "clip_ratio": 0.2,
        "clip_ratio_low": 0.2,
        "clip_ratio_high": 0.28,
        "clip_ratio_c": 3.0,
        "policy_loss": {"loss_mode": "x"},
    }
)
CONFIG = PolicyLossConfig(clip_ratio_low=0.2, clip_ratio_high=0.28, source=PLAIN)


def mode_of(seed):
    return AGGREGATIONS[seed % len(AGGREGATIONS)]


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    """What is told once a process is told once a test."""
    monkeypatch.setattr(mini_batches, "_warned", set())


@pytest.mark.usefixtures("recipe")
@pytest.mark.parametrize("name", SAME_AS_VANILLA)
def test_a_ppo_loss_of_a_recipe_is_the_cores_bit_by_bit(random_batch, name):
    for seed in SEEDS:
        batch, mode = random_batch(seed), mode_of(seed)
        ours, gradient = batch.loss("vanilla", mode, config=CONFIG)
        theirs, their_gradient = batch.loss(name, mode, config=CONFIG)
        assert theirs.loss.dtype == torch.float64
        assert theirs.loss.float().equal(ours.loss.float())
        assert their_gradient.equal(gradient)
        assert theirs.metrics.keys() <= ours.metrics.keys()
        for metric, value in theirs.metrics.items():
            torch.testing.assert_close(value, ours.metrics[metric], rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("recipe")
@pytest.mark.parametrize("name", ["recipe_ppo", "recipe_wrapping"])
def test_weights_of_the_rollout_correction_reach_the_function(random_batch, name):
    for seed in SEEDS:
        batch = random_batch(seed)
        ours, gradient = batch.loss("vanilla", weighted=True, config=CONFIG)
        theirs, their_gradient = batch.loss(name, weighted=True, config=CONFIG)
        assert theirs.loss.float().equal(ours.loss.float())
        assert their_gradient.equal(gradient)


@pytest.mark.usefixtures("recipe")
def test_weights_that_a_function_cannot_take_are_refused(random_batch):
    with pytest.raises(CustomFunctionError, match=r"recipe_dapo .*'rollout_is_weights'.*rollout_is=null"):
        random_batch(0).loss("recipe_dapo", weighted=True)


@pytest.mark.usefixtures("recipe")
@pytest.mark.parametrize("name", [*AGGREGATED, "recipe_by_hand"])
def test_a_loss_that_divides_by_the_mini_batch_does_not_depend_on_the_split(random_batch, name):
    """Rows in another order, cut into up to 6 micro-batches, empty ones among them: everything adds up.

    A loss is a float64 sum whose last bits depend on the order of its terms; after the cast it is equal in each of
    these 200 batches. ``recipe_by_hand`` divides in float32 itself, which no sum undoes.
    """
    exact = name != "recipe_by_hand"
    for seed in SEEDS:
        batch, mode, random = random_batch(seed), mode_of(seed), torch.Generator().manual_seed(seed)
        denominators = batch.denominators()
        whole, gradient = batch.loss(name, mode, denominators, config=CONFIG)
        rows = torch.randperm(batch.segments.num_rows, generator=random)
        cuts = torch.randint(0, len(rows) + 1, (seed % 6,), generator=random).sort().values
        parts = [batch.take(part).loss(name, mode, denominators, config=CONFIG) for part in rows.tensor_split(cuts)]
        loss, together = sum(part.loss.detach() for part, _ in parts), torch.cat([grad for _, grad in parts])
        expected = gradient[batch.segments.token_indices(rows)]
        if exact:
            assert loss.float().equal(whole.loss.detach().float())
            assert together.equal(expected)
        torch.testing.assert_close(
            loss, whole.loss.detach(), rtol=1e-13 if exact else 1e-5, atol=1e-15 if exact else 1e-6
        )
        torch.testing.assert_close(together, expected)
        for metric, value in whole.metrics.items():
            added = sum(part.metrics.get(metric, 0.0) for part, _ in parts)
            torch.testing.assert_close(added, value, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("recipe")
def test_values_do_not_depend_on_padding(random_batch):
    for seed in range(50):
        batch = random_batch(seed)
        longer = batch.take([0])
        tokens = batch.segments.num_tokens + longer.segments.num_tokens
        columns = {
            name: getattr(batch, name) for name in ("mask", "old", "new", "advantages", "weights", "values", "rewards")
        }
        extra = {name: torch.full((longer.segments.num_tokens,), torch.nan) for name in columns}
        extra["mask"] = torch.zeros(longer.segments.num_tokens, dtype=torch.int64)
        both = replace(
            batch,
            segments=type(batch.segments).from_lengths(torch.cat([batch.segments.lengths, longer.segments.lengths])),
            **{name: torch.cat([column, extra[name]]) for name, column in columns.items()},
        )
        for name in (*AGGREGATED, "recipe_token_mean"):
            alone, gradient = batch.loss(name, config=CONFIG)
            beside, their_gradient = both.loss(name, config=CONFIG)
            assert beside.loss.equal(alone.loss)
            assert their_gradient.equal(torch.cat([gradient, gradient.new_zeros(tokens - len(gradient))]))


@pytest.mark.usefixtures("recipe")
def test_a_local_mean_is_weighted_by_rows_and_reported_once(random_batch, caplog):
    batch = random_batch(7)
    live = [row for row in range(batch.segments.num_rows) if batch.take([row]).mask.any()]
    denominators = batch.denominators()
    with caplog.at_level(logging.WARNING):
        parts = [batch.take([row]).loss("recipe_token_mean", denominators=denominators) for row in live]
    assert [record.name for record in caplog.records] == ["compat.algorithms.mini_batch"]
    assert "recipe_token_mean" in caplog.text
    assert "depends on how the mini-batch is split" in caplog.text
    means = [float(verl_F.masked_mean(-b.advantages * b.new, b.mask)) for b in (batch.take([row]) for row in live)]
    assert float(sum(part.loss.detach() for part, _ in parts)) == pytest.approx(sum(means) / len(live), rel=1e-6)
    whole, _ = batch.loss("recipe_token_mean")
    assert float(whole.loss.detach()) == pytest.approx(
        float(verl_F.masked_mean(-batch.advantages * batch.new, batch.mask))
    )


@pytest.mark.usefixtures("recipe")
def test_a_loss_that_divides_by_the_mini_batch_is_not_reported(random_batch, caplog):
    with caplog.at_level(logging.WARNING):
        for name in (*AGGREGATED, "recipe_by_hand"):
            random_batch(1).loss(name)
    assert not caplog.records


def test_a_micro_batch_in_which_nothing_counts_is_not_shown(random_batch):
    @register_policy_loss("never")
    def never(**kwargs):
        raise AssertionError(kwargs)

    batch = random_batch(0)
    batch.mask[:] = 0
    batch.new[:] = torch.nan
    for nothing in (batch, batch.take([])):
        output, gradient = nothing.loss("never")
        assert float(output.loss.detach()) == 0
        assert not gradient.any()
        assert output.metrics == {}


def test_extreme_ratios_are_finite(random_batch, recipe):  # noqa: ARG001
    batch = random_batch(3)
    for step in (1e4, -1e4):
        output, gradient = replace(batch, new=batch.old + step).loss("recipe_ppo")
        assert output.loss.isfinite()
        assert gradient.isfinite().all()


def test_what_a_function_is_given(random_batch):
    seen = {}

    @register_policy_loss("looking")
    def looking(log_prob, **kwargs):
        seen.update(kwargs, log_prob=log_prob)
        return agg_loss(log_prob, kwargs["response_mask"], kwargs["loss_agg_mode"]), {}

    batch = random_batch(4, rejected=False)
    doubled = Denominators(2 * batch.mask.sum(), 2 * batch.segments.num_rows, 16.0)
    batch.loss("looking", "seq-mean-token-sum-norm", doubled)
    shape = (batch.segments.num_rows, int(batch.segments.lengths.max()))
    tensors = ("old_log_prob", "log_prob", "advantages", "response_mask")
    assert seen.keys() == {*tensors, "loss_agg_mode", "config", "rollout_is_weights"}
    assert {seen[name].shape for name in tensors} == {shape}
    assert seen["response_mask"].dtype == torch.bool
    assert not seen["advantages"][~seen["response_mask"]].any()
    assert seen["rollout_is_weights"] is None
    assert seen["loss_agg_mode"] == "seq-mean-token-sum-norm"
    config = seen["config"]
    assert config.policy_loss.loss_mode == config["policy_loss"].get("loss_mode") == "recipe"
    assert config.get("missing", 3) == 3
    assert dict(config.global_batch_info) == {
        "dp_size": 1,
        "batch_num_tokens": 2 * int(batch.mask.sum()),
        "global_batch_size": 2 * batch.segments.num_rows,
        "loss_scale_factor": 16.0,
    }


def test_the_log_probs_of_the_rollout_are_none_as_in_verl_without_tis(random_batch):
    @register_policy_loss("of_0_5")
    def of_0_5(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_log_probs):  # noqa: ARG001
        assert rollout_log_probs is None
        assert response_mask.dtype == torch.int64
        return agg_loss(log_prob, response_mask, loss_agg_mode), 0.0, 0.0, 0.0

    assert random_batch(0).loss("of_0_5")[0].metrics.keys() == {
        "actor/pg_clipfrac",
        "actor/ppo_kl",
        "actor/pg_clipfrac_lower",
    }


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda loss: loss, "returned Tensor"),
        (lambda loss: (loss, {}, {}), "returned 3 values"),
        (lambda loss: (loss, None), "returned 2 values"),
        (lambda loss: (loss.expand(2), {}), r"a loss that is torch.float64 \(2,\)"),
        (lambda loss: (float(loss.detach()), {}), "a loss that is float"),
        (lambda loss: (loss.detach(), {}), "a loss without gradient"),
        (lambda loss: (loss, {"a/b": torch.ones(3)}), r"the metric 'a/b' as a tensor \(3,\)"),
        (lambda loss: (loss, {"a/b": "high"}), "the metric 'a/b' as 'high'"),
        (lambda loss: (loss, {"a/b": [1.0]}), r"the metric 'a/b' as \[1.0\]"),
        (lambda loss: (loss, {3: 1.0}), "the metric 3 as 1.0"),
    ],
)
def test_a_result_of_another_form_is_refused_naming_the_function(random_batch, returned, message):
    @register_policy_loss("misshapen")
    def misshapen(log_prob, response_mask, **kwargs):  # noqa: ARG001
        return returned(agg_loss(log_prob, response_mask, "token-mean"))

    with pytest.raises(CustomFunctionError, match=message) as caught:
        random_batch(0).loss("misshapen")
    assert "misshapen" in str(caught.value)


def test_metrics_may_be_any_number(random_batch):
    @register_policy_loss("counting")
    def counting(log_prob, response_mask, **kwargs):  # noqa: ARG001
        metrics = {"int": 2, "bool": True, "tensor": log_prob.new_ones(1), "numpy": log_prob.new_ones(()).numpy()[()]}
        return agg_loss(log_prob, response_mask, "token-mean"), metrics

    metrics = random_batch(0)
    output, _ = metrics.loss("counting")
    assert {name: float(value) for name, value in output.metrics.items()} == {
        "int": 2,
        "bool": 1,
        "tensor": 1,
        "numpy": 1,
    }


def test_a_parameter_that_nothing_provides_is_named_where_the_loss_is_chosen(random_batch):
    """A recipe may hold more losses than it runs."""

    @register_policy_loss("wanting")
    def wanting(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, teacher_log_prob):
        """Never called."""

    refused = r"wanting.*test_losses.py:\d+.*requires.*'teacher_log_prob'"
    with pytest.raises(MissingInputError, match=refused):
        random_batch(1).loss("wanting")
    with pytest.raises(ConfigError, match=refused):
        load_config("tiny", ["actor_rollout_ref.actor.policy_loss.loss_mode=wanting"])


def test_names_functions_and_warnings(caplog):
    def mean(log_prob, response_mask, **kwargs):  # noqa: ARG001
        return agg_loss(log_prob, response_mask, "token-mean"), {}

    built_in = get_policy_loss_fn("vanilla")
    assert register_policy_loss("mine")(mean) is mean
    assert get_policy_loss_fn("mine") is mean
    with caplog.at_level(logging.WARNING):
        register_policy_loss("vanilla")(mean)
    assert "policy loss 'vanilla' is" in caplog.text
    assert get_policy_loss_fn("vanilla") is mean
    zeros, ones = torch.zeros(1, 2), torch.ones(1, 2)
    loss, metrics = built_in(zeros, zeros, ones, ones)
    assert (float(loss), metrics["actor/ppo_kl"]) == (-1.0, 0.0), "what was got before is still the built-in"

    def other(log_prob, response_mask, **kwargs):
        """Never called."""

    with pytest.raises(DuplicateAlgorithmError, match="mine"):
        register_policy_loss("mine")(other)
    with pytest.raises(UnknownAlgorithmError, match="'mine'"):
        get_policy_loss_fn("min")


@pytest.mark.usefixtures("recipe")
def test_a_recipe_adds_a_term_to_a_built_in_loss(random_batch):
    batch = random_batch(5)
    with_penalty, _ = batch.loss("recipe_wrapping")
    without, _ = batch.loss("recipe_ppo")
    penalty = ((batch.new - batch.old).double().square() * batch.mask).sum() / batch.mask.sum()
    assert float(with_penalty.loss) == pytest.approx(float(without.loss + 0.5 * penalty), rel=1e-6)


OTHERS = sorted(set(POLICY_LOSSES.names()) - {"bypass_mode"})


@pytest.mark.parametrize("name", OTHERS)
def test_a_built_in_loss_that_is_wrapped_is_the_packed_one(random_batch, name):
    @register_policy_loss("wrapper")
    def wrapper(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights=None):
        return get_policy_loss_fn(name)(
            old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights
        )

    source = OmegaConf.create(
        {"policy_loss": {"dro_beta": 0.1, "clip_cov_ratio": 0.3, "kl_cov_ratio": 0.2}, "tau_pos": 1.3}
    )
    config = PolicyLossConfig(dro_beta=0.1, clip_cov_ratio=0.3, kl_cov_ratio=0.2, tau_pos=1.3, source=source)
    for seed in range(20):
        batch = random_batch(seed, rejected=False)
        torch.manual_seed(seed)
        part_of = Denominators(3 * batch.mask.sum(), 3 * batch.segments.num_rows, 16.0)
        theirs, their_gradient = batch.loss("wrapper", denominators=part_of, config=config)
        if POLICY_LOSSES.get(name).select is not None:
            assert theirs.loss.isfinite()
            continue
        ours, gradient = batch.loss(name, denominators=part_of, config=config)
        assert theirs.loss.float().equal(ours.loss.float())
        assert their_gradient.equal(gradient)
        for metric, value in ours.metrics.items():
            torch.testing.assert_close(theirs.metrics[metric], value, rtol=1e-9, atol=1e-12)


def test_a_wrapped_loss_that_looks_at_mini_batches_is_reported(random_batch, caplog):
    @register_policy_loss("wrapper")
    def wrapper(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):
        return get_policy_loss_fn("clip_cov")(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config)

    with caplog.at_level(logging.WARNING):
        random_batch(0).loss("wrapper")
        random_batch(1).loss("wrapper")
    assert [record.getMessage() for record in caplog.records if "'clip_cov'" in record.getMessage()] == [
        caplog.records[0].getMessage()
    ]


def test_a_built_in_loss_outside_of_a_mini_batch_divides_by_its_rows(random_batch):
    batch = random_batch(6, torch.float64, rejected=False)
    exists = torch.arange(11) < batch.segments.lengths[:, None]

    def padded(column):
        return column.new_zeros(exists.shape).masked_scatter(exists, column)

    function = get_policy_loss_fn("vanilla")
    columns = [padded(column) for column in (batch.old, batch.new, batch.advantages, batch.mask)]
    for mode in AGGREGATIONS:
        denominators = replace(batch.denominators(), horizon=11)
        expected, _ = batch.loss("vanilla", mode, denominators, config=PolicyLossConfig(clip_ratio_high=0.28))
        loss, metrics = function(*columns, loss_agg_mode=mode, config={"clip_ratio_high": 0.28})
        assert loss.dtype == torch.float64
        torch.testing.assert_close(loss, expected.loss.detach(), rtol=1e-12, atol=0)
        assert metrics == {name: pytest.approx(float(value)) for name, value in expected.metrics.items()}
