"""Extreme input gives a finite result or an error that names the row, never a silent NaN."""

from dataclasses import replace

import pytest
import torch

from shared_algos.advantages import ADVANTAGES, AdvantageConfig, AdvantageInputs, compute_advantages
from shared_algos.aggregation import AGGREGATIONS
from shared_algos.errors import AlgorithmError, MissingInputError, NonFiniteError
from shared_algos.kl import KL_PENALTIES, kl_penalty
from shared_algos.policy_losses import POLICY_LOSSES
from shared_algos.segments import Segments

estimators = pytest.mark.parametrize("name", ADVANTAGES.names())
losses = pytest.mark.parametrize("name", [*POLICY_LOSSES.names(), "bypass_mode/reinforce", "value", "kl", "entropy"])


def two_rows(rewards, mask=(1, 1, 1), lengths=(2, 1), **columns):
    """Rows of two and of one token (or of other ``lengths``), sessions of one group."""
    rows, tokens = torch.arange(len(lengths)), len(rewards)
    filled = {
        "values": torch.zeros(tokens),
        "old_log_probs": torch.full((tokens,), -1.0),
        "sum_pi_squared": torch.full((tokens,), 0.5),
        "rollout_is_weights": torch.ones(tokens),
        "reward_baselines": torch.zeros(len(rows)),
        "reward_components": torch.stack([rows, -rows], dim=1).float(),
    }
    return AdvantageInputs(
        torch.tensor(rewards),
        torch.tensor(mask),
        Segments.from_lengths(lengths),
        torch.zeros_like(rows),
        rows,
        torch.zeros_like(rows),
        **(filled | columns),
    )


def needing(need):
    """Estimators that need this input."""
    return pytest.mark.parametrize("name", [name for name in ADVANTAGES.names() if need in ADVANTAGES.get(name).needs])


def run(name, inputs, **settings):
    return compute_advantages(name, inputs, AdvantageConfig(**settings))


@losses
@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("even", [1e4, -1e4])
@pytest.mark.parametrize("odd", [1e4, -1e4])
def test_log_ratios_of_ten_thousand(random_batch, name, mode, even, odd):
    batch = random_batch(1)
    offsets = torch.where(torch.arange(len(batch.old)) % 2 == 0, even, odd)
    batch = replace(batch, new=batch.old + offsets).selected(name)
    output, gradient = batch.loss(name, mode, batch.denominators())
    assert output.loss.isfinite()
    assert gradient.isfinite().all()
    assert all(value.isfinite() for value in output.metrics.values())


@pytest.mark.parametrize("kind", KL_PENALTIES)
def test_kl_of_log_ratios_of_ten_thousand(kind):
    assert kl_penalty(torch.tensor([1e4, -1e4]), torch.zeros(2), kind).isfinite().all()


@estimators
@pytest.mark.parametrize("rows", [0, 1])
def test_an_empty_batch_and_a_batch_of_one(random_batch, name, rows):
    batch = random_batch(2)
    longest = batch.take(batch.segments.lengths.argsort(descending=True)[:rows]).suited(name)
    outputs = run(name, longest.inputs())
    assert outputs.advantages.isfinite().all()
    assert len(outputs.returns) == longest.segments.num_tokens


@losses
@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_losses_of_an_empty_batch_and_of_masked_rows_are_zero(random_batch, name, mode):
    batch = random_batch(2)
    masked = replace(batch, mask=torch.zeros_like(batch.mask))
    for nothing in (batch.take(torch.arange(0)).selected(name), masked.selected(name)):
        output, gradient = nothing.loss(name, mode, nothing.denominators())
        assert output.loss.detach() == 0
        assert not gradient.any()


@losses
def test_losses_of_one_token(random_batch, name):
    batch = random_batch(2)
    batch.mask = torch.where(torch.arange(len(batch.mask)) == batch.mask.nonzero()[0], 1, 0)
    batch = batch.selected(name)
    output, gradient = batch.loss(name, "token-mean", batch.denominators())
    assert output.loss.isfinite()
    assert gradient.isfinite().all()
    assert not gradient[batch.mask == 0].any()


@estimators
def test_masked_rows_get_zero(name):
    outputs = run(name, two_rows([1.0, 2.0, 3.0], mask=(0, 0, 0)))
    assert not outputs.advantages.any()
    assert not outputs.returns.any()


@estimators
def test_one_token(name):
    inputs = two_rows([1.0, 2.0, 3.0], mask=(0, 1, 0))
    if name == "grpo_passk":
        with pytest.raises(AlgorithmError, match=r"row 0 is alone in its group: set rollout\.n to 2 or more"):
            run(name, inputs)
        return
    outputs = run(name, inputs)
    whitened_outcome = name in ("gdpo", "reinforce_plus_plus_baseline")
    assert outputs.returns[1] == pytest.approx(0.0 if whitened_outcome else 3.0, rel=1e-5)
    assert outputs.advantages.isfinite().all()


def test_pass_at_k_names_the_session_that_is_alone():
    """One of the groups has two rows but one session, the other two sessions of which one is rejected."""
    inputs = two_rows([0.0, 1.0, 2.0], keys=["u_0_0", "u_0_1"])
    with pytest.raises(AlgorithmError, match=r"row 1 \(u_0_1\) is alone in its group"):
        run("grpo_passk", replace(inputs, sessions=torch.zeros(2, dtype=torch.int64), indices=torch.arange(2)))
    with pytest.raises(AlgorithmError, match=r"row 0 \(u_0_0\) is alone in its group"):
        run("grpo_passk", replace(inputs, response_mask=torch.tensor([1, 1, 0])))


@estimators
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_a_reward_that_is_not_finite_names_its_row(name, bad):
    with pytest.raises(NonFiniteError, match=f"the reward of row 1 is {bad}"):
        run(name, two_rows([0.0, 1.0, bad]))
    with pytest.raises(NonFiniteError, match=r"the reward of row 1 \(u_1_0\)"):
        run(name, two_rows([0.0, 1.0, bad], keys=["u_0_0", "u_1_0"]))


@estimators
def test_bad_numbers_of_a_row_that_takes_no_part_are_ignored(name):
    good = two_rows([0.0, 1.0, 2.0, 0.0], mask=(1, 1, 1, 0), lengths=(2, 1, 1))
    nan = torch.tensor([0.0, 0.0, 0.0, torch.nan])
    bad = replace(
        good,
        token_level_rewards=good.token_level_rewards + nan,
        values=good.values + nan,
        old_log_probs=good.old_log_probs + nan,
        sum_pi_squared=good.sum_pi_squared + nan,
        rollout_is_weights=good.rollout_is_weights + nan,
        reward_baselines=good.reward_baselines + nan[1:],
        reward_components=good.reward_components + nan[1:, None],
    )
    assert run(name, bad).advantages.equal(run(name, good).advantages)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("gae", "values"),
        ("optimal_token_baseline", "old_log_probs"),
        ("optimal_token_baseline", "sum_pi_squared"),
        ("tir_optimal_token_baseline", "rollout_is_weights"),
    ],
)
def test_a_token_column_that_is_not_finite_names_its_row(name, column, bad):
    with pytest.raises(NonFiniteError, match=f"{column} of row 1 is {bad}"):
        run(name, two_rows([0.0, 1.0, 1.0], **{column: torch.tensor([0, 0, bad])}))


def test_a_baseline_that_is_not_finite_names_its_row():
    with pytest.raises(NonFiniteError, match="reward_baselines of row 1 is nan"):
        run("remax", two_rows([0.0, 1.0, 1.0], reward_baselines=torch.tensor([0.0, torch.nan])))


def test_a_reward_component_that_is_not_finite_names_row_and_component():
    components = torch.tensor([[0.0, 1.0], [2.0, -torch.inf]])
    with pytest.raises(NonFiniteError, match=r"reward_components\[:, 1\] of row 1 \(u_1_0\) is -inf"):
        run("gdpo", two_rows([0.0, 1.0, 1.0], reward_components=components, keys=["u_0_0", "u_1_0"]))


@pytest.mark.parametrize("name", ["optimal_token_baseline", "tir_optimal_token_baseline"])
@pytest.mark.parametrize("weights", [torch.ones(3), torch.full((3,), 1e-30), torch.full((3,), 1e30)])
def test_log_probs_of_ten_thousand_in_the_token_baselines(name, weights):
    inputs = two_rows([0.0, 1.0, 2.0], old_log_probs=torch.full((3,), -1e4), rollout_is_weights=weights)
    assert run(name, inputs).advantages.isfinite().all()
    with pytest.raises(NonFiniteError, match=r"the variance 1 - 2 \* exp\(old_log_probs\).* of row 1 is -inf"):
        run(name, replace(inputs, old_log_probs=torch.tensor([-1.0, -1.0, 1e4])))


@pytest.mark.parametrize("name", ["rloo", "gpg", "remax", "gae", "reinforce_plus_plus"])
def test_a_result_beyond_float32_names_its_row(name):
    rewards = torch.tensor([0.0, 3e38, -3e38], dtype=torch.float64)
    inputs = replace(two_rows([0.0] * 3), token_level_rewards=rewards * 2)
    with pytest.raises(NonFiniteError, match=r"the (advantage|return) of row 0 is inf"):
        run(name, inputs)
    assert compute_advantages(name, inputs, AdvantageConfig(), torch.float64).returns.isfinite().all()


@needing("values")
def test_missing_values_are_named(name):
    with pytest.raises(MissingInputError, match=f"advantage estimator '{name}' needs 'values'"):
        run(name, two_rows([0.0, 1.0, 1.0], values=None))


@needing("reward_components")
def test_missing_reward_components_are_named(name):
    with pytest.raises(MissingInputError, match=f"advantage estimator '{name}' needs 'reward_components'"):
        run(name, two_rows([0.0, 1.0, 1.0], reward_components=None))


@pytest.mark.parametrize("weights", [(), (1.0,), (1.0, 2.0, 3.0)])
def test_reward_weights_are_as_many_as_components(weights):
    with pytest.raises(AlgorithmError, match=f"gdpo_reward_weights has {len(weights)} values for 2 reward components"):
        run("gdpo", two_rows([0.0, 1.0, 1.0]), gdpo_reward_weights=weights)


def test_a_column_of_another_shape_is_named():
    with pytest.raises(AlgorithmError, match="values has 2 values for 3 tokens"):
        two_rows([0.0, 1.0, 1.0], values=torch.zeros(2))
    with pytest.raises(AlgorithmError, match=r"reward_components must have 2 dimension\(s\), got shape \[2\]"):
        two_rows([0.0, 1.0, 1.0], reward_components=torch.zeros(2))
    with pytest.raises(AlgorithmError, match="reward_components has 3 values for 2 rows"):
        two_rows([0.0, 1.0, 1.0], reward_components=torch.zeros(3, 2))
    with pytest.raises(AlgorithmError, match=r"reward_baselines must have 1 dimension\(s\), got shape \[2, 1\]"):
        two_rows([0.0, 1.0, 1.0], reward_baselines=torch.zeros(2, 1))


def test_two_rows_of_one_identity_are_named():
    inputs = replace(two_rows([0.0, 1.0, 1.0]), sessions=torch.zeros(2, dtype=torch.int64))
    with pytest.raises(AlgorithmError, match="row 0 and row 1 have the same group, session and index"):
        compute_advantages("grpo", inputs, AdvantageConfig())
