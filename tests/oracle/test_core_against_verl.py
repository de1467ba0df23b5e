"""The algorithm core against verl 0.9.1 on 200 random ragged batches, float64 in both, on mask-1 tokens.

Agreement is within 1e-9 relative. Where verl computes a result in float32 whatever its input (shares of clipped
tokens), within 1e-6. What differs by intent is in docs/deviations.md and in test_deviations.py.
"""

import pytest
import torch

from shared_algos.advantages import AdvantageConfig, compute_advantages
from shared_algos.aggregation import AGGREGATIONS, Denominators, aggregate
from shared_algos.kl import KL_PENALTIES, AdaptiveKLController, apply_kl_penalty, kl_loss, kl_penalty
from shared_algos.reductions import masked_whiten
from shared_algos.value_loss import ValueLossConfig, ValueLossInputs, compute_value_loss

pytestmark = pytest.mark.oracle
HORIZON = 24  # the padded width, which is what verl divides by where loss_scale_factor is not set


def agree(ours, theirs, rtol=1e-9, atol=1e-12):
    torch.testing.assert_close(ours, torch.as_tensor(theirs, dtype=torch.float64), rtol=rtol, atol=atol)


def agree_at_mask(batch, ours, theirs, atol=1e-12):
    mask = batch.pack(batch.mask).bool()
    assert not ours[~mask].any()
    agree(ours[mask], batch.pack(theirs)[mask], atol=atol)


def without_rounded_std(theirs, groups, sessions):
    """Undo, in groups of one session, verl's division by 1 + 1e-6 in float32."""
    members = {
        group: {s for g, s in zip(groups.tolist(), sessions.tolist(), strict=True) if g == group}
        for group in groups.tolist()
    }
    lone = torch.tensor([len(members[group]) == 1 for group in groups.tolist()])
    theirs[lone] *= (torch.tensor(1.0) + 1e-6).double() / (1 + 1e-6)
    return theirs


@pytest.mark.parametrize("by_std", [True, False])
def test_grpo(verl, batches, by_std):
    for batch in batches:
        rewards = batch.rewards()
        config = AdvantageConfig(norm_adv_by_std_in_grpo=by_std)
        ours = compute_advantages("grpo", batch.inputs(rewards), config, torch.float64)
        theirs, returns = verl(
            "grpo",
            token_level_rewards=rewards,
            response_mask=batch.mask,
            index=batch.groups.numpy(),
            norm_adv_by_std_in_grpo=by_std,
        )
        assert theirs.equal(returns)
        if by_std:
            theirs = without_rounded_std(theirs, batch.groups, torch.arange(len(batch.groups)))
        agree_at_mask(batch, ours.advantages, theirs)
        assert ours.returns.equal(ours.advantages)


def test_grpo_of_sessions_with_several_outputs(verl, batches):
    for batch in batches:
        rewards = batch.rewards()
        sessions = torch.arange(len(batch.groups)) // 5  # those of five neighbours that have one uid
        ours = compute_advantages("grpo", batch.inputs(rewards, sessions), AdvantageConfig(), torch.float64)
        names = zip(batch.groups.tolist(), sessions.tolist(), range(len(sessions)), strict=True)
        theirs = verl(
            "grpo_of_sessions",
            uid=batch.groups.numpy().astype(object),
            keys=["_".join(map(str, name)) for name in names],
            token_level_rewards=rewards,
            response_mask=batch.mask,
        )
        agree_at_mask(batch, ours.advantages, without_rounded_std(theirs, batch.groups, sessions))


def whitening_tolerance(batch):
    """verl's whitening adds 1e-8 to its counts, which in its usual float32 is lost."""
    return 1e-7 / float(batch.mask.sum())


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95)])
def test_gae(verl, batches, gamma, lam):
    for batch in batches:
        rewards, values = batch.rewards(), batch.column()
        ours = compute_advantages(
            "gae", batch.inputs(rewards, values=values), AdvantageConfig(gamma, lam), torch.float64
        )
        # A float mask keeps verl's count/(count-1) out of float32.
        theirs, returns = verl(
            "gae",
            token_level_rewards=rewards,
            values=values,
            response_mask=batch.mask.double(),
            gamma=gamma,
            lam=lam,
        )
        agree_at_mask(batch, ours.advantages, theirs, atol=whitening_tolerance(batch))
        agree_at_mask(batch, ours.returns, returns)


def test_whitening(verl, batches):
    for batch in batches:
        values = batch.column(3.0)
        ours = masked_whiten(batch.pack(values), batch.pack(batch.mask), batch.segments)
        agree_at_mask(
            batch, ours, verl("masked_whiten", values=values, mask=batch.mask.double()), whitening_tolerance(batch)
        )


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_aggregation(verl, batches, mode):
    for batch in batches:
        batch.mask[0] = 0
        losses, mask = batch.column(), batch.pack(batch.mask)
        denominators = Denominators.count(mask, batch.segments, HORIZON)
        ours = aggregate(batch.pack(losses), mask, batch.segments, mode, denominators)
        agree(ours, verl("agg_loss", loss_mat=losses, loss_mask=batch.mask, loss_agg_mode=mode))


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_value_loss(verl, batches, mode):
    for batch in batches:
        values, returns = batch.column(), batch.column()
        predictions = values + batch.column(0.5)
        leaf = batch.pack(predictions).requires_grad_()
        packed = (batch.pack(x) for x in (values, returns, batch.mask))
        denominators = Denominators.count(batch.pack(batch.mask), batch.segments, HORIZON)
        ours = compute_value_loss(
            ValueLossInputs(leaf, *packed, batch.segments, denominators), ValueLossConfig(0.5, mode)
        )
        ours.loss.backward()
        loss, gradient, clipfrac = verl(
            "value_loss",
            vpreds=predictions,
            returns=returns,
            values=values,
            response_mask=batch.mask,
            cliprange_value=0.5,
            loss_agg_mode=mode,
        )
        agree(ours.loss.detach(), loss)
        agree_at_mask(batch, leaf.grad, gradient)
        agree(ours.metrics["critic/vf_clipfrac"], clipfrac, rtol=1e-6)


@pytest.mark.parametrize("kind", KL_PENALTIES)
def test_kl_penalty_and_loss(verl, batches, kind):
    for batch in batches:
        new, ref, mask = batch.column(3.0), batch.column(3.0), batch.pack(batch.mask)
        leaf = batch.pack(new).requires_grad_()
        ours = kl_penalty(leaf, batch.pack(ref), kind)
        ours.sum().backward()
        value, gradient = verl("kl_penalty", logprob=new, ref_logprob=ref, kl_penalty=kind)
        agree(ours.detach(), batch.pack(value))
        agree(leaf.grad, batch.pack(gradient))
        denominators = Denominators.count(mask, batch.segments, HORIZON)
        loss = kl_loss(leaf, batch.pack(ref), mask, batch.segments, denominators, kind, "token-mean")
        agree(
            loss.detach(),
            verl("agg_loss", loss_mat=value, loss_mask=batch.mask, loss_agg_mode="token-mean"),
            atol=1e-11,
        )


@pytest.mark.parametrize("kind", ["kl", "abs", "mse", "low_var_kl"])
def test_kl_in_reward(verl, batches, kind):
    for batch in batches:
        scores, old, ref = batch.rewards(), batch.column(), batch.column()
        packed = (batch.pack(x) for x in (scores, old, ref, batch.mask))
        rewards, mean_kl = apply_kl_penalty(*packed, batch.segments, 0.05, kind)
        theirs, their_kl = verl(
            "apply_kl_penalty",
            token_level_scores=scores,
            old_log_probs=old,
            ref_log_prob=ref,
            response_mask=batch.mask,
            beta=0.05,
            kind=kind,
        )
        agree_at_mask(batch, rewards, theirs)
        agree(mean_kl, their_kl)


def test_adaptive_kl_controller(verl):
    updates = [(0.3, 64), (0.05, 64), (0.1, 128), (0.095, 7), (1e4, 1)]
    controller, ours = AdaptiveKLController(0.001, 0.1, 10_000), []
    for update in updates:
        controller.update(*update)
        ours.append(controller.value)
    assert ours == verl("adaptive_kl", init_kl_coef=0.001, target_kl=0.1, horizon=10_000, updates=updates)
