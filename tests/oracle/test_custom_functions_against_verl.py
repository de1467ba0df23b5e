"""One recipe in verl 0.9.1 and here: 200 random ragged batches, float64 in both, within 1e-9 relative on mask-1 tokens.

verl computes a loss over all rows at once; here the rows are cut into micro-batches, whose parts add up to the same.
"""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from compat.algorithms import agg_loss
from compat.algorithms.torch_functional import masked_whiten
from shared_algos.advantages import ADVANTAGES, AdvantageConfig, compute_advantages
from shared_algos.aggregation import AGGREGATIONS, Denominators
from shared_algos.policy_losses import POLICY_LOSSES, PolicyLossConfig, PolicyLossInputs, compute_policy_loss
from shared_algos.segments import Segments

pytestmark = pytest.mark.oracle
RECIPE = Path(__file__).parents[1] / "compat" / "algorithms" / "recipe.py"
HORIZON = 24  # the padded width, which is what verl divides by where loss_scale_factor is not set
ALGORITHM = {"gamma": 0.97, "lam": 0.9, "norm_adv_by_std_in_grpo": True}
ACTOR = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}
OLD_METRICS = ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower")


@pytest.fixture(autouse=True)
def recipe(monkeypatch):
    """The recipe's functions are registered here, and gone after the test."""
    for registry in (ADVANTAGES, POLICY_LOSSES):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    spec = importlib.util.spec_from_file_location("recipe_of_the_oracle", RECIPE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)


def agree(ours, theirs, rtol=1e-9):
    torch.testing.assert_close(ours, torch.as_tensor(theirs, dtype=torch.float64), rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("name", ["recipe_grpo", "recipe_reinforce", "recipe_gae"])
def test_estimators(verl, batches, name):
    for batch in batches:
        rewards, values = batch.rewards(), batch.column()
        settings = AdvantageConfig(gamma=0.97, lam=0.9, source=ALGORITHM)
        ours = compute_advantages(name, batch.inputs(rewards, values=values), settings, torch.float64)
        more = {"config": ALGORITHM, "index": batch.groups.numpy().astype(object)}
        if name == "recipe_gae":
            more = {"values": values, "gamma": 0.97, "lam": 0.9}
        columns = {"token_level_rewards": rewards, "response_mask": batch.mask}
        theirs = verl("of_recipe", file=str(RECIPE), kind="estimator", name=name, **columns, **more)
        kept = batch.pack(batch.mask).bool()
        for mine, of_verl in zip((ours.advantages, ours.returns), theirs, strict=True):
            agree(mine[kept], batch.pack(of_verl)[kept])


NAMES = ["recipe_ppo", "recipe_dapo", "recipe_token_mean", "recipe_by_hand", "recipe_wrapping"]


@pytest.mark.parametrize("name", NAMES)
def test_losses(verl, batches, name):
    for number, batch in enumerate(batches):
        mode = AGGREGATIONS[number % len(AGGREGATIONS)]
        old, advantages = batch.column(), batch.column()
        new = old + batch.column(0.5)
        columns = {"old_log_prob": old, "log_prob": new, "advantages": advantages, "response_mask": batch.mask}
        config = {**ACTOR, "global_batch_info": counts(batch)}
        loss, gradient, metrics = verl(
            "of_recipe", file=str(RECIPE), kind="loss", name=name, config=config, **arguments(name, columns, mode)
        )
        parts = 1 if name == "recipe_token_mean" else 1 + number % 4
        ours, our_gradient, our_metrics = by_micro_batches(name, batch, columns, mode, parts)
        agree(ours, loss)
        kept = batch.pack(batch.mask).bool()
        agree(our_gradient[kept], batch.pack(gradient)[kept])
        named = metrics[0] if len(metrics) == 1 else dict(zip(OLD_METRICS, metrics, strict=True))
        assert our_metrics.keys() == named.keys()
        for metric, value in named.items():
            agree(our_metrics[metric], value, rtol=1e-6)


def counts(batch):
    return {
        "dp_size": 1,
        "batch_num_tokens": int(batch.mask.sum()),
        "global_batch_size": len(batch.mask),
        "loss_scale_factor": HORIZON,
    }


def arguments(name, columns, mode):
    """What the actor of the function's version passed: a bool mask from 0.9 on."""
    mask = columns["response_mask"]
    newest = name in ("recipe_ppo", "recipe_by_hand", "recipe_wrapping")
    return {**columns, "response_mask": mask.bool() if newest else mask, "loss_agg_mode": mode}


def by_micro_batches(name, batch, columns, mode, parts):
    """Loss, gradient ``[T]`` and metrics of rows that are cut into ``parts`` micro-batches."""
    packed = {column: batch.pack(values) for column, values in columns.items()}
    denominators = Denominators.count(packed["response_mask"], batch.segments, HORIZON)
    config = PolicyLossConfig(
        clip_ratio_high=0.28, loss_agg_mode=mode, source={**ACTOR, "policy_loss": {"loss_mode": name}}
    )
    leaf = packed["log_prob"].requires_grad_()
    loss, metrics = torch.zeros((), dtype=torch.float64), {}
    for rows in torch.arange(len(batch.mask)).tensor_split(parts):
        tokens = batch.segments.token_indices(rows)
        inputs = PolicyLossInputs(
            leaf[tokens],
            packed["old_log_prob"][tokens],
            packed["advantages"][tokens],
            packed["response_mask"][tokens],
            Segments.from_lengths(batch.segments.lengths[rows]),
            denominators,
        )
        output = compute_policy_loss(name, inputs, config)
        loss = loss + output.loss
        for metric, value in output.metrics.items():
            metrics[metric] = metrics.get(metric, 0.0) + value
    loss.backward()
    return loss.detach(), leaf.grad, metrics


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_agg_loss_outside_of_a_mini_batch(verl, batches, mode):
    for batch in batches:
        batch.mask[0] = 0
        losses, more = batch.column(), counts(batch) | {"dp_size": 2}
        for arguments in ({}, more):
            ours = agg_loss(losses, batch.mask, mode, **arguments)
            agree(ours, verl("agg_loss", loss_mat=losses, loss_mask=batch.mask, loss_agg_mode=mode, **arguments))


def test_whitening_of_padded_rows(verl, batches):
    for batch in batches:
        values, mask = batch.column(3.0), batch.mask.double()
        for shift in (True, False):
            ours = masked_whiten(values, mask, shift_mean=shift)
            agree(ours, verl("masked_whiten", values=values, mask=mask, shift_mean=shift))
