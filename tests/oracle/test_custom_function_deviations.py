"""Each deviation of docs/deviations.md that concerns functions of recipes: what verl 0.9.1 gives and what we give."""

import importlib.util
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from compat.algorithms import agg_loss, get_adv_estimator_fn, register_adv_est, register_policy_loss
from compat.algorithms.mini_batch import ActiveMiniBatch, activate
from shared_algos.advantages import ADVANTAGES, AdvantageConfig, AdvantageInputs, compute_advantages
from shared_algos.aggregation import Denominators
from shared_algos.errors import DuplicateAlgorithmError
from shared_algos.policy_losses import POLICY_LOSSES, PolicyLossConfig, PolicyLossInputs, compute_policy_loss
from shared_algos.segments import Segments

pytestmark = pytest.mark.oracle
RECIPE = Path(__file__).parents[1] / "compat" / "algorithms" / "recipe.py"


@pytest.fixture(autouse=True)
def recipe(monkeypatch):
    for registry in (ADVANTAGES, POLICY_LOSSES):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    spec = importlib.util.spec_from_file_location("recipe_of_the_oracle", RECIPE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)


def of_verl(verl, kind, name, **arguments):
    return verl("of_recipe", file=str(RECIPE), kind=kind, name=name, **arguments)


def inputs_of(rewards, mask, **columns):
    rows = torch.arange(len(rewards))
    segments = Segments.from_lengths([rewards.shape[1]] * len(rewards))
    packed = {name: column.flatten() for name, column in columns.items()}
    return AdvantageInputs(rewards.flatten(), mask.flatten(), segments, torch.zeros_like(rows), rows, rows, **packed)


def micro_batch(log_prob, denominators, mask=None):
    log_prob = torch.tensor([log_prob])
    mask = torch.ones_like(log_prob) if mask is None else torch.tensor([mask])
    segments = Segments.from_lengths([log_prob.shape[1]])
    columns = (log_prob[0].requires_grad_(), torch.zeros_like(log_prob[0]), torch.ones_like(log_prob[0]), mask[0])
    return PolicyLossInputs(*columns, segments, denominators)


def test_f1_rejected_rows_are_not_shown(verl):
    rewards, mask = torch.tensor([[100.0], [1.0]]), torch.tensor([[0], [1]])
    arguments = {"token_level_rewards": rewards, "response_mask": mask, "index": np.zeros(2, dtype=object)}
    theirs, _ = of_verl(verl, "estimator", "recipe_grpo", config={"norm_adv_by_std_in_grpo": False}, **arguments)
    config = AdvantageConfig(source={"norm_adv_by_std_in_grpo": False})
    ours = compute_advantages("recipe_grpo", inputs_of(rewards, mask), config).advantages
    assert theirs.flatten().tolist() == [0, -49.5]
    assert ours.tolist() == [0, 1]


def test_f2_what_stands_at_masked_tokens_is_not_shown(verl):
    rewards, mask = torch.tensor([[0.0, 0, 1]]), torch.tensor([[1, 0, 1]])
    values = torch.tensor([[0.5, torch.nan, 0.5]])
    arguments = {"token_level_rewards": rewards, "response_mask": mask, "values": values, "gamma": 1.0, "lam": 1.0}
    theirs, _ = of_verl(verl, "estimator", "recipe_gae", **arguments)
    ours = compute_advantages("recipe_gae", inputs_of(rewards, mask, values=values), AdvantageConfig()).advantages
    assert theirs.isnan().all()
    assert ours.isfinite().all()


def test_f3_a_local_mean_is_weighted_by_rows(verl):
    """verl's engine adds up what a loss returns for each micro-batch; up to 0.7.1 its actor weighed by rows."""
    rows = [[-1.0, -1.0, -1.0], [-3.0]]
    theirs = []
    for log_prob in rows:
        columns = [torch.tensor([log_prob]), torch.zeros(1, len(log_prob)), torch.ones(1, len(log_prob))]
        arguments = dict(zip(("log_prob", "old_log_prob", "advantages"), columns, strict=True))
        mask = torch.ones(1, len(log_prob))
        loss, _, _ = of_verl(
            verl, "loss", "recipe_token_mean", config={}, response_mask=mask, loss_agg_mode="token-mean", **arguments
        )
        theirs.append(float(loss))
    config, whole = PolicyLossConfig(), Denominators(4.0, 2.0, 8.0)
    ours = [compute_policy_loss("recipe_token_mean", micro_batch(row, whole), config).loss.detach() for row in rows]
    assert sum(theirs) == 4.0
    assert float(sum(ours)) == 2.0


def test_f4_counts_are_those_of_the_mini_batch(verl):
    losses, mask = torch.tensor([[1.0, 2.0]]), torch.ones(1, 2)
    arguments = {"loss_mat": losses, "loss_mask": mask, "loss_agg_mode": "token-mean", "batch_num_tokens": 2}
    theirs = verl("agg_loss", **arguments)
    with activate(ActiveMiniBatch("a loss", Denominators(6.0, 3.0, 8.0), PolicyLossConfig())):
        ours = agg_loss(**arguments)
    assert (float(theirs), float(ours)) == (1.5, 0.5)


def test_f5_metrics_are_weighted_by_tokens(verl):
    """verl's engine takes the mean over micro-batches."""

    @register_policy_loss("with_a_metric")
    def with_a_metric(log_prob, response_mask, loss_agg_mode, **kwargs):  # noqa: ARG001
        return agg_loss(log_prob, response_mask, loss_agg_mode), {"mine": log_prob.mean().item()}

    whole, config = Denominators(4.0, 2.0, 8.0), PolicyLossConfig()
    parts = [compute_policy_loss("with_a_metric", micro_batch(row, whole), config) for row in ([1.0] * 3, [5.0])]
    assert verl("mean_metric", values=[1.0, 5.0]) == 3.0
    assert float(sum(part.metrics["mine"] for part in parts)) == 2.0


def test_f6_names_that_are_taken(verl, caplog):
    def mine(token_level_rewards, response_mask, **kwargs):  # noqa: ARG001
        return token_level_rewards, token_level_rewards

    def other(token_level_rewards, response_mask, **kwargs):
        """Never called."""

    def loss(log_prob, response_mask, **kwargs):
        """Never called."""

    def other_loss(log_prob, response_mask, **kwargs):
        """Never called."""

    assert verl("taken_names") == ("Adv estimator rloo has already been registered", "the second loss")
    with caplog.at_level(logging.WARNING):
        register_adv_est("rloo")(mine)
    assert "'rloo'" in caplog.text
    assert get_adv_estimator_fn("rloo") is mine
    with pytest.raises(DuplicateAlgorithmError, match="'rloo'"):
        register_adv_est("rloo")(other)
    register_policy_loss("taken")(loss)
    with pytest.raises(DuplicateAlgorithmError, match="'taken'"):
        register_policy_loss("taken")(other_loss)
