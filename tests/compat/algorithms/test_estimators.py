"""Estimators with verl's signature, run by the core on packed batches."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from compat.algorithms import AdvantageEstimator, get_adv_estimator_fn, register_adv_est
from compat.errors import CustomFunctionError
from runtime.config import load_config
from runtime.errors import ConfigError
from shared_algos.advantages import ADVANTAGES, AdvantageConfig, compute_advantages
from shared_algos.errors import (
    DuplicateAlgorithmError,
    MissingInputError,
    NonFiniteError,
    UnknownAlgorithmError,
)

SEEDS = range(200)
CONFIG = AdvantageConfig(
    gamma=0.99, lam=0.95, source=OmegaConf.create({"gamma": 0.99, "lam": 0.95, "norm_adv_by_std_in_grpo": True})
)


def compute(name, batch, config=CONFIG, dtype=torch.float64, **columns):
    return compute_advantages(name, batch.inputs(**columns), config, dtype)


def agree(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("recipe")
@pytest.mark.parametrize("by_std", [True, False])
def test_a_grpo_of_a_recipe_is_the_cores(random_batch, by_std):
    source = OmegaConf.create({"norm_adv_by_std_in_grpo": by_std})
    config = AdvantageConfig(norm_adv_by_std_in_grpo=by_std, source=source)
    for seed in SEEDS:
        batch = random_batch(seed, torch.float64)
        theirs, ours = compute("recipe_grpo", batch, config), compute("grpo", batch, config)
        agree(theirs.advantages, ours.advantages)
        agree(theirs.returns, ours.returns)


@pytest.mark.usefixtures("recipe")
def test_a_gae_of_a_recipe_is_the_cores(random_batch):
    """verl's whitening adds 1e-8 to its counts, which is lost in float32 and not here: hence the absolute tolerance."""
    assert ADVANTAGES.get("recipe_gae").needs == {"values"}
    for seed in SEEDS:
        batch = random_batch(seed, torch.float64)
        batch = replace(batch, rewards=batch.rewards * batch.mask)
        theirs, ours = compute("recipe_gae", batch), compute("gae", batch)
        torch.testing.assert_close(theirs.advantages, ours.advantages, rtol=1e-7, atol=1e-7)
        agree(theirs.returns, ours.returns)


@pytest.mark.usefixtures("recipe")
@pytest.mark.parametrize("name", ["recipe_grpo", "recipe_reinforce", "recipe_gae"])
def test_values_do_not_depend_on_row_order_and_padding(random_batch, name):
    for seed in range(50):
        batch = random_batch(seed)
        straight = compute(name, batch)
        rows = torch.randperm(batch.segments.num_rows, generator=torch.Generator().manual_seed(seed))
        shuffled = compute(name, batch.take(rows))
        assert shuffled.advantages.equal(straight.advantages[batch.segments.token_indices(rows)])
        # A rejected row that is longer than the others neither widens nor changes what they see.
        longer = batch.take([0, 0])
        longer.mask[:] = 0
        longer.rewards[:] = torch.nan
        assert_unchanged_beside(batch, longer, straight, name)


def assert_unchanged_beside(batch, rejected, alone, name):
    together = batch.inputs()
    count, rows = batch.segments.num_tokens, batch.segments.num_rows
    columns = {
        column: torch.cat([getattr(batch, column), getattr(rejected, column)])
        for column in ("rewards", "mask", "groups", "values")
    }
    lengths = torch.cat([batch.segments.lengths, rejected.segments.lengths])
    both = replace(
        together,
        token_level_rewards=columns["rewards"],
        response_mask=columns["mask"],
        segments=type(batch.segments).from_lengths(lengths),
        groups=columns["groups"],
        sessions=torch.cat([batch.sessions, rows + torch.arange(2)]),
        indices=torch.zeros(rows + 2, dtype=torch.int64),
        values=columns["values"],
    )
    outputs = compute_advantages(name, both, CONFIG, torch.float64)
    assert outputs.advantages[:count].equal(alone.advantages)
    assert not outputs.advantages[count:].any()


def test_a_rejected_row_takes_no_part_in_its_group(random_batch):
    """FACTS.md, section 1, case 11: rewards 100 and 1 of one uid, the first row rejected."""
    batch = random_batch(0).take([0, 1])
    batch = replace(
        batch,
        groups=torch.zeros(2, dtype=torch.int64),
        mask=batch.mask * batch.segments.rows,
        rewards=batch.rewards * 0,
    )
    batch.mask[-1] = 1
    batch.rewards[batch.segments.offsets[1:] - 1] = torch.tensor([100.0, 1.0])

    @register_adv_est("centered")
    def centered(token_level_rewards, response_mask, index):
        scores = token_level_rewards.sum(-1)
        baseline = torch.stack(
            [scores[index == uid].mean() if sum(index == uid) > 1 else scores[0] * 0 for uid in index]
        )
        advantages = (scores - baseline)[:, None] * response_mask
        return advantages, advantages

    advantages = compute("centered", batch).advantages
    assert advantages[batch.mask.bool()].unique().tolist() == [1.0]
    assert not advantages[~batch.mask.bool()].any()


def test_what_verl_passes_is_passed_and_defaults_stay(random_batch):
    seen = {}

    @register_adv_est("looking")
    def looking(token_level_rewards, response_mask, gamma=0.5, values=None, **kwargs):
        seen.update(kwargs, gamma=gamma, values=values, shape=token_level_rewards.shape, dtype=response_mask.dtype)
        return token_level_rewards * response_mask, token_level_rewards

    batch = random_batch(3, rejected=False)
    baselines = torch.rand(batch.segments.num_rows)
    keys = [f"my_uid{group}_{row}_0" for row, group in enumerate(batch.groups.tolist())]
    compute("looking", batch, reward_baselines=baselines, keys=keys)
    rows = batch.inputs().live_rows
    assert seen.keys() == {"index", "config", "reward_baselines", "gamma", "values", "shape", "dtype"}
    assert (seen["gamma"], seen["values"], seen["dtype"]) == (0.5, None, torch.int64)
    assert seen["shape"] == (batch.segments.num_rows, int(batch.segments.lengths.max()))
    assert seen["index"].dtype == object
    assert seen["index"].tolist() == [f"my_uid{batch.groups[row]}" for row in rows]
    assert seen["reward_baselines"].equal(baselines[rows])
    assert seen["config"].gamma == seen["config"].get("gamma") == 0.99


def test_what_has_no_default_is_provided_or_refused_by_config(random_batch):
    batch = random_batch(3)

    @register_adv_est("needing")
    def needing(token_level_rewards, response_mask, values, old_log_probs, reward_baselines, gamma):
        assert gamma == 0.99
        assert values.shape == old_log_probs.shape == response_mask.shape
        return values + old_log_probs + reward_baselines[:, None], token_level_rewards

    assert ADVANTAGES.get("needing").needs == {"values", "old_log_probs", "reward_baselines"}
    columns = {"old_log_probs": batch.old, "reward_baselines": torch.ones(batch.segments.num_rows)}
    advantages = compute("needing", batch, **columns).advantages
    assert advantages.equal(torch.where(batch.mask.bool(), batch.values + batch.old + 1, 0).double())
    with pytest.raises(MissingInputError, match="old_log_probs"):
        compute("needing", batch, reward_baselines=columns["reward_baselines"])


def test_components_reach_a_function_in_verls_place_for_gdpo(random_batch):
    batch = random_batch(5, rejected=False)
    components = torch.rand(batch.segments.num_rows, 2)

    @register_adv_est(AdvantageEstimator.GDPO)
    def gdpo(token_level_rewards, response_mask, index, config=None, non_tensor_batch=None, batch=None, **kwargs):  # noqa: ARG001
        ends = batch["attention_mask"][:, batch["prompts"].size(1) :].sum(dim=1) - 1
        assert token_level_rewards[torch.arange(len(ends)), ends].all()
        scores = sum(torch.as_tensor(non_tensor_batch[key]) for key in config.gdpo_reward_keys)
        advantages = scores[:, None] * response_mask
        return advantages, advantages

    config = AdvantageConfig(source=OmegaConf.create({"gdpo_reward_keys": ["format", "answer"]}))
    advantages = compute("gdpo", batch, config, reward_components=components).advantages
    expected = batch.segments.spread(components.sum(1)).double() * batch.mask
    torch.testing.assert_close(advantages, expected, rtol=1e-6, atol=0)
    with pytest.raises(MissingInputError, match="reward_components"):
        compute("gdpo", batch, config)


def test_a_parameter_that_nothing_provides_is_named_where_the_estimator_is_chosen(random_batch):
    """A recipe may hold more estimators than it runs."""

    @register_adv_est("wanting")
    def wanting(token_level_rewards, response_mask, teacher_log_prob):
        """Never called."""

    with pytest.raises(MissingInputError, match="'wanting' needs 'teacher_log_prob'"):
        compute("wanting", random_batch(1))
    with pytest.raises(ConfigError, match=r"wanting needs 'teacher_log_prob'.*choose another estimator"):
        load_config("tiny", ["algorithm.adv_estimator=wanting"])


def test_parameters_by_position_only_are_refused():
    with pytest.raises(CustomFunctionError, match=r"\['token_level_rewards'\] by position only"):

        @register_adv_est("unnamed")
        def unnamed(token_level_rewards, /, **kwargs):
            """Never called."""

    assert "unnamed" not in ADVANTAGES.names()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda mask: (mask.float(),), "returned 1 values"),
        (lambda mask: (mask.float(), mask.float(), {}), "returned 3 values"),
        (lambda mask: mask.float(), "returned Tensor"),
        (lambda mask: (mask.float(), None), "returns that are NoneType"),
        (lambda mask: (mask.float().sum(-1), mask.float()), r"advantages that are torch.float32 \(\d+,\)"),
        (lambda mask: (mask, mask.float()), "advantages that are torch.int64"),
    ],
)
def test_a_result_of_another_form_is_refused_naming_the_function(random_batch, returned, message):
    @register_adv_est("misshapen")
    def misshapen(token_level_rewards, response_mask):  # noqa: ARG001
        return returned(response_mask)

    with pytest.raises(CustomFunctionError, match=message) as caught:
        compute("misshapen", random_batch(0))
    assert "misshapen" in str(caught.value)


def test_what_is_not_finite_is_named_by_row(random_batch):
    batch = random_batch(0, rejected=False)
    keys = [f"uid_{row}_0" for row in range(batch.segments.num_rows)]

    @register_adv_est("dividing")
    def dividing(token_level_rewards, response_mask, values):  # noqa: ARG001
        return 1 / values, token_level_rewards

    with_zero = replace(batch, values=batch.values.clone())
    with_zero.values[batch.segments.offsets[1]] = 0
    with pytest.raises(NonFiniteError, match=r"advantage.* row 1 \(uid_1_0\)"):
        compute("dividing", with_zero, keys=keys)
    with_nan = replace(batch, rewards=batch.rewards.clone())
    with_nan.rewards[batch.segments.offsets[2] - 1] = torch.nan
    with pytest.raises(NonFiniteError, match=r"reward of row 1 \(uid_1_0\) is nan"):
        compute("dividing", with_nan, keys=keys)


def test_garbage_at_masked_tokens_is_not_shown(random_batch):
    batch = random_batch(2)
    garbage = replace(batch, values=torch.where(batch.mask.bool(), batch.values, torch.nan))

    @register_adv_est("unmasked")
    def unmasked(token_level_rewards, response_mask, values):  # noqa: ARG001
        return values.cumsum(1), values

    assert compute("unmasked", garbage).advantages.equal(compute("unmasked", batch).advantages)


def test_nothing_is_shown_of_a_batch_in_which_nothing_counts(random_batch):
    batch = random_batch(2)
    batch.mask[:] = 0

    @register_adv_est("never")
    def never(token_level_rewards, response_mask):
        raise AssertionError((token_level_rewards, response_mask))

    for nothing in (batch, batch.take([])):
        outputs = compute("never", nothing)
        assert outputs.advantages.shape == (nothing.segments.num_tokens,)
        assert not outputs.advantages.any()


def test_names_functions_and_warnings(caplog):
    def outcome(token_level_rewards, response_mask):
        return token_level_rewards * response_mask, token_level_rewards

    assert register_adv_est("mine")(outcome) is outcome
    assert register_adv_est("mine")(outcome) is outcome, "the same function again"
    assert get_adv_estimator_fn("mine") is outcome
    with caplog.at_level(logging.WARNING):
        register_adv_est(AdvantageEstimator.GRPO)(outcome)
    assert "advantage estimator 'grpo' is" in caplog.text
    assert get_adv_estimator_fn("grpo") is get_adv_estimator_fn(AdvantageEstimator.GRPO) is outcome

    def other(token_level_rewards, response_mask):
        """Never called."""

    for name in ("mine", "grpo"):
        with pytest.raises(DuplicateAlgorithmError, match=name):
            register_adv_est(name)(other)
    with pytest.raises(UnknownAlgorithmError, match="'mine'"):
        get_adv_estimator_fn("min")


@pytest.mark.parametrize("name", [name.value for name in AdvantageEstimator])
def test_a_built_in_estimator_on_padded_rows_is_the_packed_one(random_batch, name):
    function = get_adv_estimator_fn(name)
    for seed in range(20):
        batch = random_batch(seed, torch.float64, rejected=False)
        rows = torch.arange(batch.segments.num_rows)
        sizes = batch.groups.bincount()
        if name == "grpo_passk" and bool((sizes[batch.groups] == 1).any()):
            continue
        config = OmegaConf.create(
            {"gamma": 0.9, "lam": 0.8, "gdpo_reward_keys": ["a", "b"], "gdpo_reward_weights": [1, 2]}
        )
        packed = {"old_log_probs": batch.old, "sum_pi_squared": batch.values.square()}
        baselines, components = torch.rand(len(rows)), torch.rand(len(rows), 2, dtype=torch.float64)
        settings = AdvantageConfig(gamma=0.9, lam=0.8, gdpo_reward_weights=(1, 2))
        inputs = replace(
            batch.inputs(**packed, reward_baselines=baselines, reward_components=components), sessions=rows
        )
        expected = compute_advantages(name, inputs, settings, torch.float64)
        exists = torch.arange(11) < batch.segments.lengths[:, None]

        def padded(column, exists=exists):
            return column.new_zeros(exists.shape).masked_scatter(exists, column)

        advantages, returns = function(
            token_level_rewards=padded(batch.rewards),
            response_mask=padded(batch.mask),
            index=np.array([f"uid{group}" for group in batch.groups], dtype=object),
            config=config,
            values=padded(batch.values),
            reward_baselines=baselines,
            non_tensor_batch={"a": components[:, 0].numpy(), "b": components[:, 1].tolist()},
            **{column: padded(values) for column, values in packed.items()},
        )
        # The order of groups, and with it that of the float64 sums over the batch, is another.
        torch.testing.assert_close(advantages[exists], expected.advantages, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(returns[exists], expected.returns, rtol=1e-12, atol=1e-12)


def test_keywords_of_a_built_in_estimator(random_batch):
    batch = random_batch(0, rejected=False).take([0])
    rewards, mask = batch.rewards[None], batch.mask[None]
    values = {"values": batch.values[None], "config": {"gamma": 0.5}}
    gae = get_adv_estimator_fn("gae")
    _, of_config = gae(rewards, mask, **values)
    _, of_keyword = gae(rewards, mask, gamma=1.0, **values)
    assert not of_config.equal(of_keyword)
    grpo = get_adv_estimator_fn("grpo")
    two, ones = torch.tensor([[1.0], [2.0]]), torch.ones(2, 1)
    by_std, _ = grpo(two, ones, index=["a", "a"], config={"norm_adv_by_std_in_grpo": False})
    centered, _ = grpo(two, ones, index=["a", "a"], norm_adv_by_std_in_grpo=False)
    assert by_std.flatten().tolist() == pytest.approx([-0.7071, 0.7071], abs=1e-4)
    assert centered.flatten().tolist() == [-0.5, 0.5]
    grpo(rewards, mask, ["a"], epsilon=1e-6, num_repeat=8, batch={}, non_tensor_batch={})
    of_integers, _ = grpo(two.long(), ones, index=["a", "a"])
    assert of_integers.equal(by_std)
    with pytest.raises(TypeError, match="'grpo' needs index"):
        grpo(rewards, mask)
    with pytest.raises(CustomFunctionError, match="epsilon"):
        grpo(rewards, mask, epsilon=1e-3)
    with pytest.raises(TypeError, match="'gama'"):
        grpo(rewards, mask, gama=1.0)


def test_a_recipe_wraps_a_built_in_estimator(random_batch):
    @register_adv_est("halved")
    def halved(token_level_rewards, response_mask, index, config, **kwargs):
        advantages, returns = get_adv_estimator_fn("grpo")(
            token_level_rewards, response_mask, index=index, config=config, **kwargs
        )
        return advantages / 2, returns

    for seed in range(50):
        batch = random_batch(seed)
        assert compute("halved", batch).advantages.equal(
            compute("grpo", batch, dtype=torch.float32).advantages.double() / 2
        )


def test_a_built_in_estimator_says_what_it_misses():
    with pytest.raises(MissingInputError, match="'gae' needs 'values'"):
        get_adv_estimator_fn("gae")(torch.ones(1, 2), torch.ones(1, 2))
