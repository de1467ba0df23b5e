"""Every form in which losses and estimators of verl 0.3 to 0.9 were written: each gives what the core's own gives."""

# ruff: noqa: ARG001  (what a form takes and does not read is what the test is about)

from enum import Enum

import pytest
import torch

from compat.algorithms import AdvantageEstimator, agg_loss, register_adv_est, register_policy_loss
from compat.algorithms import torch_functional as verl_F
from shared_algos.advantages import AdvantageConfig, compute_advantages


def surrogate(old_log_prob, log_prob, advantages):
    ratio = torch.exp(log_prob - old_log_prob)
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.28))


def newest(
    old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None, rollout_is_weights=None
):
    losses = surrogate(old_log_prob, log_prob, advantages)
    assert rollout_is_weights is None
    return agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info), {"actor/ppo_kl": 0.0}


def without_weights(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):
    assert config.clip_ratio_high == 0.28
    return agg_loss(surrogate(old_log_prob, log_prob, advantages), response_mask, loss_agg_mode), {}


def four_values(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None):
    losses = surrogate(old_log_prob, log_prob, advantages)
    nothing = torch.tensor(0.0)
    kl = verl_F.masked_mean(old_log_prob - log_prob, response_mask)
    return agg_loss(loss_mat=losses, loss_mask=response_mask, loss_agg_mode=loss_agg_mode), nothing, kl, nothing


def a_list_of_four(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):
    return [agg_loss(surrogate(old_log_prob, log_prob, advantages), response_mask, loss_agg_mode), 0.0, 0.0, 0]


def without_config(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode):
    return agg_loss(surrogate(old_log_prob, log_prob, advantages), response_mask, loss_agg_mode), {}


def without_mode(old_log_prob, log_prob, advantages, response_mask):
    return agg_loss(surrogate(old_log_prob, log_prob, advantages), response_mask, "token-mean"), {}


def by_position(old, new, adv, mask, mode, cfg):
    return agg_loss(surrogate(old, new, adv), mask, mode), {"clip": cfg.clip_ratio}


def some_by_position(old, log_prob, adv, response_mask, mode, config):
    return agg_loss(surrogate(old, log_prob, adv), response_mask, mode), {"clip": config["clip_ratio"]}


def by_keyword_only(*, log_prob, old_log_prob, response_mask, advantages, **kwargs):
    return agg_loss(surrogate(old_log_prob, log_prob, advantages), response_mask, kwargs["loss_agg_mode"]), {}


def anything(**kwargs):
    losses = surrogate(kwargs["old_log_prob"], kwargs["log_prob"], kwargs["advantages"])
    return agg_loss(losses, kwargs["response_mask"], kwargs["loss_agg_mode"]), {}


def of_0_5_1(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_log_probs):
    assert rollout_log_probs is None
    return agg_loss(surrogate(old_log_prob, log_prob, advantages), response_mask, loss_agg_mode), {}


class Callable:
    """A loss with state."""

    def __call__(self, old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):
        return without_weights(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config)


LOSSES = [
    newest,
    without_weights,
    four_values,
    a_list_of_four,
    without_config,
    without_mode,
    by_position,
    some_by_position,
    by_keyword_only,
    anything,
    of_0_5_1,
    Callable(),
]


@pytest.mark.parametrize("form", LOSSES, ids=lambda form: getattr(form, "__name__", type(form).__name__))
def test_losses(random_batch, form):
    register_policy_loss("old_form")(form)
    for seed in range(5):
        batch = random_batch(seed, torch.float64)
        ours, gradient = batch.loss("old_form")
        kept = batch.mask.bool()
        new = batch.new.clone().requires_grad_()
        expected = surrogate(batch.old, new, batch.advantages)[kept].sum() / kept.sum()
        expected.backward()
        assert float(ours.loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
        torch.testing.assert_close(gradient, new.grad, rtol=1e-9, atol=1e-12)


def group_means(rewards, index):
    scores = rewards.sum(-1)
    return torch.stack([scores[[i for i, other in enumerate(index) if other == uid]].mean() for uid in index])


def of_today(token_level_rewards, response_mask, index=None, config=None, **kwargs):
    advantages = (token_level_rewards.sum(-1) - group_means(token_level_rewards, index)).unsqueeze(-1) * response_mask
    return advantages, advantages


def estimator_without_config(token_level_rewards, response_mask, index):
    return of_today(token_level_rewards, response_mask, index)


def estimator_with_epsilon(token_level_rewards, response_mask, index, epsilon=1e-6, norm_adv_by_std_in_grpo=False):
    assert (epsilon, norm_adv_by_std_in_grpo) == (1e-6, False)
    return of_today(token_level_rewards, response_mask, index)


def estimator_by_keyword_only(*, index, response_mask, token_level_rewards, config):
    assert config.gamma == 0.5
    return of_today(token_level_rewards, response_mask, index)


def estimator_with_anything(**kwargs):
    return of_today(kwargs["token_level_rewards"], kwargs["response_mask"], kwargs["index"])


def estimator_with_settings(token_level_rewards, response_mask, index, gamma, lam, config=None):
    assert (gamma, lam) == (0.5, 1.0)
    return of_today(token_level_rewards, response_mask, index, config)


ESTIMATORS = [
    of_today,
    estimator_without_config,
    estimator_with_epsilon,
    estimator_by_keyword_only,
    estimator_with_anything,
    estimator_with_settings,
]


class Names(str, Enum):  # noqa: UP042  (as recipes write it)
    """A recipe's own names, as it extends ``AdvantageEstimator``."""

    MINE = "mine_by_enum"


@pytest.mark.parametrize("form", ESTIMATORS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("name", ["mine", Names.MINE, AdvantageEstimator.GRPO], ids=["text", "enum", "built-in"])
def test_estimators(random_batch, form, name):
    config = AdvantageConfig(gamma=0.5, norm_adv_by_std_in_grpo=False)
    batches = [random_batch(seed, torch.float64) for seed in range(5)]
    rows = [batch.segments.sum(batch.mask) > 0 for batch in batches]
    expected = []
    for batch, live in zip(batches, rows, strict=True):
        scores = batch.segments.sum(batch.rewards)
        means = torch.stack([scores[live & (batch.groups == group)].mean() for group in batch.groups])
        expected.append(batch.segments.spread(torch.where(live, scores - means, 0)) * batch.mask)
    register_adv_est(name)(form)
    for batch, advantages in zip(batches, expected, strict=True):
        ours = compute_advantages(getattr(name, "value", name), batch.inputs(), config, torch.float64)
        torch.testing.assert_close(ours.advantages, advantages, rtol=1e-9, atol=1e-12)
        assert ours.returns.equal(ours.advantages)
