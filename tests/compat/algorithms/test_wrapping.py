"""Functions of recipes that call built-in ones: of their own name, and ones that look at whole mini-batches."""

from dataclasses import replace

import pytest
import torch

from compat.algorithms import get_adv_estimator_fn, get_policy_loss_fn, register_adv_est, register_policy_loss
from compat.algorithms.estimators import AdvantageRegistry
from compat.algorithms.losses import PolicyLossRegistry
from compat.algorithms.signatures import calls
from shared_algos.advantages import ADVANTAGES, AdvantageConfig, compute_advantages
from shared_algos.policy_losses import (
    POLICY_LOSSES,
    PolicyLossConfig,
    PolicyLossInputs,
    compute_policy_loss,
    select_tokens,
)
from shared_algos.rollout_correction import RolloutCorrectionConfig

CORRECTION = RolloutCorrectionConfig("token", 2.0, True, "token_k1", "0.6_1.6", True, "reinforce")
CONFIG = PolicyLossConfig(
    clip_cov_ratio=0.3, clip_cov_lb=-9.0, clip_cov_ub=9.0, kl_cov_ratio=0.2, rollout_correction=CORRECTION
)


def wrap(name):
    """Register a loss that calls ``name`` and nothing else."""

    inner = get_policy_loss_fn(name)

    @register_policy_loss("wrapper")
    def wrapper(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):
        return inner(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config)


def by_micro_batches(name, batch, parts):
    """Loss, gradient ``[T]`` and metrics of a mini-batch in ``parts`` micro-batches, as the engine runs it."""
    new = batch.new.clone().requires_grad_()
    whole = PolicyLossInputs(new, batch.old, batch.advantages, batch.mask, batch.segments, batch.denominators())
    selection = select_tokens(name, whole, CONFIG, torch.Generator().manual_seed(3))
    chosen = {} if selection is None else selection.columns
    whole = replace(whole, **chosen)
    if "response_mask" in chosen:
        batch = replace(batch, mask=chosen["response_mask"])
        whole = replace(whole, denominators=batch.denominators())
    loss, metrics = 0.0, {}
    for rows in torch.arange(batch.segments.num_rows).chunk(parts):
        tokens = batch.segments.token_indices(rows)
        columns = {column: value[tokens] for column, value in packed(whole).items()}
        part = replace(whole, segments=batch.take(rows).segments, **columns)
        output = compute_policy_loss(name, part, CONFIG)
        loss = loss + output.loss
        for metric, value in output.metrics.items():
            metrics[metric] = metrics.get(metric, 0.0) + float(value)
    loss.backward()
    return float(loss.detach()), new.grad, metrics


def packed(inputs):
    names = ("log_probs", "old_log_probs", "advantages", "response_mask", "rollout_is_weights", "selected")
    return {name: getattr(inputs, name) for name in names if getattr(inputs, name) is not None}


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov", "bypass_mode"])
def test_a_wrapped_loss_decides_about_the_whole_mini_batch(random_batch, name):
    """Whatever the split, the wrapped loss is the built-in one, which the engine lets look at the whole mini-batch."""
    wrap(name)
    for seed in range(10):
        batch = random_batch(seed, torch.float64)
        expected, gradient, metrics = by_micro_batches(name, batch, 1)
        for parts in (1, 3):
            loss, ours, our_metrics = by_micro_batches("wrapper", batch, parts)
            assert loss == pytest.approx(expected, rel=1e-12)
            torch.testing.assert_close(ours, gradient, rtol=1e-9, atol=1e-12)
            assert our_metrics == {metric: pytest.approx(value) for metric, value in metrics.items()}


def test_no_extra_pass_for_functions_that_wrap_nothing_of_the_kind():
    wrap("vanilla")
    assert POLICY_LOSSES.get("wrapper").select is None

    def named(config):
        return get_policy_loss_fn("clip_cov")(config)

    def helped(config):
        return named(config)

    def only_a_key(config):
        return config.get("bypass_mode")

    namespace = {"get_policy_loss_fn": get_policy_loss_fn}
    exec("def outer():\n    return inner()\ndef inner():\n    return get_policy_loss_fn('kl_cov')", namespace)
    assert calls(named, "clip_cov")
    assert not calls(named, "kl_cov")
    assert not calls(only_a_key, "bypass_mode")
    assert calls(namespace["outer"], "kl_cov")


def test_a_loss_that_took_over_a_name_finds_the_built_in_inside(random_batch):
    expected, gradient = random_batch(2).loss("vanilla")

    @register_policy_loss("vanilla")
    def mine(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):
        inner = PolicyLossRegistry()["vanilla"]
        loss, metrics = inner(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config)
        return 2 * loss, metrics

    assert get_policy_loss_fn("vanilla") is mine
    output, ours = random_batch(2).loss("vanilla")
    torch.testing.assert_close(output.loss, 2 * expected.loss)
    torch.testing.assert_close(ours, 2 * gradient)


def test_an_estimator_that_took_over_a_name_finds_the_built_in_inside(random_batch):
    expected = compute_advantages("grpo", random_batch(2).inputs(), AdvantageConfig())

    @register_adv_est("grpo")
    def mine(token_level_rewards, response_mask, index, config=None):
        advantages, returns = get_adv_estimator_fn("grpo")(token_level_rewards, response_mask, index, config)
        return -advantages, returns

    assert get_adv_estimator_fn("grpo") is mine
    ours = compute_advantages("grpo", random_batch(2).inputs(), AdvantageConfig())
    torch.testing.assert_close(ours.advantages, -expected.advantages)
    advantages, _ = mine(torch.eye(2), torch.ones(2, 2), ["u", "u"])
    assert not advantages.any(), "called by the recipe itself, outside of a trainer, it does not recurse either"


@pytest.mark.parametrize(("view", "core"), [(AdvantageRegistry(), ADVANTAGES), (PolicyLossRegistry(), POLICY_LOSSES)])
def test_registries_are_live_views(view, core):
    name = core.names()[0]

    def mine(log_prob, response_mask, **kwargs):
        """Never called."""

    assert set(view) == set(core.names())
    assert len(view) == len(core.names())
    assert "nothing" not in view
    before = core.get(name)
    view[name] = mine
    view["new"] = mine
    assert view[name] is mine
    assert view.get("new") is mine
    assert core.get("new").reference
    del view["new"]
    del view[name]
    assert "new" not in core.names()
    assert core.get(name) is before
    assert view.pop("new", None) is None
    with pytest.raises(KeyError):
        view["new"]
