"""Each deviation of docs/deviations.md: what verl 0.9.1 gives and what we give instead."""

import math

import numpy as np
import pytest
import torch

from shared_algos.advantages import AdvantageConfig, AdvantageInputs, compute_advantages
from shared_algos.aggregation import Denominators, aggregate
from shared_algos.errors import AlgorithmError, NonFiniteError
from shared_algos.kl import apply_kl_penalty, kl_penalty
from shared_algos.reductions import masked_whiten
from shared_algos.segments import Segments

pytestmark = pytest.mark.oracle
DR_GRPO = AdvantageConfig(norm_adv_by_std_in_grpo=False)


def grpo_of_one_group(verl, rewards, mask, config):
    """Advantages of rows ``[B, R]`` of one uid: verl's ``[B, R]`` and ours ``[B, R]``."""
    rows = torch.arange(len(rewards))
    by_std = config.norm_adv_by_std_in_grpo
    index = np.zeros(len(rewards), dtype=np.int64)
    theirs, _ = verl(
        "grpo", token_level_rewards=rewards, response_mask=mask, index=index, norm_adv_by_std_in_grpo=by_std
    )
    segments = Segments.from_lengths([rewards.shape[1]] * len(rewards))
    inputs = AdvantageInputs(rewards.flatten(), mask.flatten(), segments, torch.zeros_like(rows), rows, rows)
    return theirs, compute_advantages("grpo", inputs, config).advantages.view_as(rewards)


def test_d1_a_reward_on_a_masked_token_is_kept(verl):
    rewards, mask = torch.tensor([[0.0, 0, 0, 0, 1]]), torch.tensor([[1, 1, 1, 0, 0]])
    arguments = {"token_level_rewards": rewards, "values": torch.zeros(1, 5), "response_mask": mask}
    _, theirs = verl("gae", gamma=1.0, lam=1.0, **arguments)
    zero = torch.tensor([0])
    inputs = AdvantageInputs(rewards[0], mask[0], Segments.from_lengths([5]), zero, zero, zero, values=torch.zeros(5))
    ours = compute_advantages("gae", inputs, AdvantageConfig()).returns
    assert theirs[0, :3].tolist() == [0, 0, 0]
    assert ours.tolist() == [1, 1, 1, 0, 0]


def test_d2_a_rejected_row_leaves_its_group(verl):
    theirs, ours = grpo_of_one_group(verl, torch.tensor([[100.0], [1.0]]), torch.tensor([[0], [1]]), DR_GRPO)
    assert theirs.tolist() == [[0], [-49.5]]
    assert ours.tolist() == [[0], [1]]


def test_d3_a_session_whose_last_output_is_rejected_speaks_through_the_one_before(verl):
    rewards, mask = torch.tensor([[2.0], [2.0], [0.0]]), torch.tensor([[1], [0], [1]])
    keys, uid = ["u_0_0", "u_0_1", "u_1_0"], np.array(["u"] * 3, dtype=object)
    theirs = verl("grpo_of_sessions", uid=uid, keys=keys, token_level_rewards=rewards, response_mask=mask)
    sessions, indices = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])
    segments = Segments.from_lengths([1, 1, 1])
    inputs = AdvantageInputs(rewards[:, 0], mask[:, 0], segments, torch.zeros_like(sessions), sessions, indices)
    ours = compute_advantages("grpo", inputs, AdvantageConfig()).advantages
    assert theirs[0] == 0
    assert ours.tolist() == pytest.approx([0.7071, 0, -0.7071], abs=1e-4)


def test_d4_equal_rewards_give_exactly_zero(verl):
    theirs, ours = grpo_of_one_group(verl, torch.full((7, 1), 3.3), torch.ones(7, 1), AdvantageConfig())
    assert theirs.abs().max() > 0.1
    assert not ours.any()


def test_d5_a_lone_score_is_divided_by_one_and_a_millionth_in_float64(verl):
    theirs, ours = grpo_of_one_group(verl, torch.ones(1, 1).double(), torch.ones(1, 1), AdvantageConfig())
    assert float(theirs) == pytest.approx(1 / 1.00000095367431640625, rel=1e-12)
    assert float(ours) == pytest.approx(1 / 1.000001, rel=1e-7)


def test_d6_a_reward_that_is_not_finite_is_refused(verl):
    rewards, mask = torch.tensor([[math.nan], [1.0]]), torch.ones(2, 1)
    theirs, _ = verl("grpo", token_level_rewards=rewards, response_mask=mask, index=np.zeros(2, dtype=np.int64))
    assert theirs.isnan().all()
    with pytest.raises(NonFiniteError, match="row 0"):
        grpo_of_one_group(verl, rewards, mask, AdvantageConfig())


def test_d7_masked_positions_are_zero(verl):
    rewards, mask = torch.tensor([[0.0, 0, 1]]), torch.tensor([[1, 0, 1]])
    arguments = {"token_level_rewards": rewards, "values": torch.ones(1, 3), "response_mask": mask}
    theirs, _ = verl("gae", gamma=0.9, lam=0.9, **arguments)
    zero = torch.tensor([0])
    inputs = AdvantageInputs(rewards[0], mask[0], Segments.from_lengths([3]), zero, zero, zero, values=torch.ones(3))
    ours = compute_advantages("gae", inputs, AdvantageConfig(0.9, 0.9))
    assert theirs[0, 1] != 0
    assert ours.advantages[1] == ours.returns[1] == 0


def test_d8_one_token_can_be_whitened(verl):
    values, mask = torch.tensor([[5.0, 1.0]]), torch.tensor([[1, 0]])
    with pytest.raises(AssertionError, match="The sum of the mask is one"):
        verl("masked_whiten", values=values, mask=mask)
    assert masked_whiten(values[0], mask[0], Segments.from_lengths([2])).tolist() == [0, 0]


def test_d9_the_horizon_is_not_the_width_of_the_micro_batch(verl):
    losses, mode = torch.tensor([-1.0] * 3 + [0.5] * 5), "seq-mean-token-sum-norm"
    rows = losses[None, :3], losses[None, 3:]
    theirs = [
        verl("agg_loss", loss_mat=row, loss_mask=torch.ones_like(row), loss_agg_mode=mode, global_batch_size=2)
        for row in rows
    ]
    segments, mask = Segments.from_lengths([3, 5]), torch.ones(8)
    ours = aggregate(losses, mask, segments, mode, Denominators.count(mask, segments, 8))
    assert float(sum(theirs)) == pytest.approx(-0.25)
    assert float(ours) == -0.03125


def test_d10_an_empty_mini_batch_is_zero(verl):
    empty = torch.zeros(1, 2)
    assert verl("agg_loss", loss_mat=empty, loss_mask=empty, loss_agg_mode="token-mean").isnan()
    segments = Segments.from_lengths([2])
    assert aggregate(empty[0], empty[0], segments, "token-mean", Denominators.count(empty[0], segments, 2)) == 0


def test_d11_masked_rows_leave_the_mean_kl(verl):
    old, mask = torch.tensor([[0.4], [9.0]]), torch.tensor([[1], [0]])
    zeros = torch.zeros(2, 1)
    columns = {"token_level_scores": zeros, "old_log_probs": old, "ref_log_prob": zeros, "response_mask": mask}
    _, theirs = verl("apply_kl_penalty", beta=0.1, kind="kl", **columns)
    packed = (column[:, 0] for column in columns.values())
    _, ours = apply_kl_penalty(*packed, Segments.from_lengths([1, 1]), 0.1, "kl")
    assert theirs == pytest.approx(0.2)
    assert float(ours) == pytest.approx(0.4)


def test_d12_k3_keeps_its_digits_in_float32(verl):
    close, zero = torch.tensor([2e-4]), torch.zeros(1)
    exact = 0.5 * 2e-4**2
    theirs, _ = verl("kl_penalty", logprob=close, ref_logprob=zero, kl_penalty="k3")
    assert abs(float(theirs) - exact) > 0.2 * exact
    assert float(kl_penalty(zero + 2e-4, zero, "k3")) == pytest.approx(exact, rel=1e-3)


SESSIONS = {"sessions": torch.tensor([0, 0, 0, 1]), "indices": torch.tensor([0, 1, 2, 0])}
KEYS = ["u_0_0", "u_0_1", "u_0_2", "u_1_0"]


def of_one_uid(rewards, mask=None, **columns):
    """Inputs of rows of one token and one uid, each a session of its own unless ``columns`` say otherwise."""
    rows = torch.arange(len(rewards))
    mask = torch.ones(len(rewards)) if mask is None else mask
    identity = {"groups": torch.zeros_like(rows), "sessions": rows, "indices": torch.zeros_like(rows)}
    return AdvantageInputs(rewards, mask, Segments.from_lengths([1] * len(rewards)), **(identity | columns))


def ours(name, inputs, **settings):
    return compute_advantages(name, inputs, AdvantageConfig(**settings)).advantages


def gdpo(verl, components, weights=None, **settings):
    """verl's advantages ``[B]`` of rows of one token and one uid, components ``[B, K]``."""
    ones = torch.ones(len(components), 1, dtype=torch.int64)
    names = [f"reward_{k}" for k in range(components.shape[1])]
    advantages, _ = verl(
        "estimator",
        name="gdpo",
        float64=False,
        config={"gdpo_reward_keys": names, "gdpo_reward_weights": weights} | settings,
        token_level_rewards=torch.zeros(len(components), 1),
        response_mask=ones,
        index=np.zeros(len(components), dtype=np.int64),
        batch={"prompts": ones, "attention_mask": torch.cat([ones, ones], dim=1)},
        non_tensor_batch=dict(zip(names, components.numpy().T, strict=True)),
    )
    return advantages[:, 0]


def test_d13_every_outcome_estimator_counts_a_session_once(verl):
    rewards = torch.tensor([1.0, 1.0, 1.0, 0.0])
    uid = np.array(["u"] * 4, dtype=object)
    columns = {"token_level_rewards": rewards[:, None], "response_mask": torch.ones(4, 1)}
    for name, of_each_output, of_sessions in (
        ("rloo", [1 / 3] * 3 + [-1], [1, 1, 1, -1]),
        ("grpo_vectorized", [0.5] * 3 + [-1.5], [0.7071] * 3 + [-0.7071]),
        ("opo", [0.25] * 3 + [-0.75], [0.5] * 3 + [-0.5]),
    ):
        theirs = verl("advantages_of_sessions", name=name, uid=uid, keys=KEYS, **columns)
        assert theirs.flatten().tolist() == pytest.approx(of_each_output, abs=1e-4)
        assert ours(name, of_one_uid(rewards, **SESSIONS)).tolist() == pytest.approx(of_sessions, abs=1e-4)


def test_d14_a_lone_score_of_rloo_is_its_advantage_under_both_names(verl):
    rewards = torch.tensor([3.0])
    theirs = [
        verl(
            "estimator",
            name=name,
            token_level_rewards=rewards[:, None],
            response_mask=torch.ones(1, 1),
            index=np.zeros(1, dtype=np.int64),
        )[0].item()
        for name in ("rloo", "rloo_vectorized")
    ]
    assert theirs == [3, 0]
    assert ours("rloo", of_one_uid(rewards)) == ours("rloo_vectorized", of_one_uid(rewards)) == 3


def test_d15_gpg_counts_only_sessions_that_take_part(verl):
    rewards, mask = torch.tensor([1.0, 3.0, 0.0, 0.0]), torch.tensor([1, 1, 0, 0])
    uids = np.array([0, 0, 1, 1])
    theirs, _ = verl(
        "estimator", name="gpg", token_level_rewards=rewards[:, None], response_mask=mask[:, None], index=uids
    )
    assert theirs.flatten().tolist() == [-2, 2, 0, 0]
    assert ours("gpg", of_one_uid(rewards, mask, groups=torch.from_numpy(uids))).tolist() == [-1, 1, 0, 0]


def test_d16_leaving_the_division_by_std_out_is_followed_by_every_name(verl):
    rewards = torch.tensor([1.0, 5.0])
    settings = {"norm_adv_by_std_in_grpo": False}
    theirs = verl(
        "advantages_of_sessions",
        name="grpo_vectorized",
        uid=np.array(["u"] * 2, dtype=object),
        keys=["u_0_0", "u_1_0"],
        config=settings,
        token_level_rewards=rewards[:, None],
        response_mask=torch.ones(2, 1),
    )
    assert theirs.flatten().tolist() == pytest.approx([-0.7071, 0.7071], abs=1e-4)
    assert ours("grpo_vectorized", of_one_uid(rewards), **settings).tolist() == [-2, 2]
    components = torch.tensor([[0.0, 0.0], [1.0, 100.0], [5.0, 0.0]])
    inputs = of_one_uid(torch.zeros(3), reward_components=components)
    divided = gdpo(verl, components, **settings)
    torch.testing.assert_close(divided, ours("gdpo", inputs), rtol=1e-4, atol=1e-4)
    assert ours("gdpo", inputs, **settings).tolist() == pytest.approx([-0.6207, 1.1536, -0.5329], abs=1e-4)


def test_d17_gdpo_reads_its_components_in_float64(verl):
    components = torch.tensor([[16777217.0], [16777216.0]], dtype=torch.float64)
    assert gdpo(verl, components).tolist() == [0, 0]
    of_two = ours("gdpo", of_one_uid(torch.zeros(2), reward_components=components))
    assert of_two.tolist() == pytest.approx([0.7071, -0.7071], abs=1e-4)


def test_d18_gdpo_wants_one_weight_for_each_component(verl):
    components = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    assert gdpo(verl, components, [1.0, 0.5, 7.0]).equal(gdpo(verl, components, [1.0, 0.5]))
    with pytest.raises(AssertionError, match="IndexError"):
        gdpo(verl, components, [1.0])
    inputs = of_one_uid(torch.zeros(2), reward_components=components)
    for weights in ((1.0,), (1.0, 0.5, 7.0)):
        with pytest.raises(AlgorithmError, match=f"has {len(weights)} values for 2 reward components"):
            ours("gdpo", inputs, gdpo_reward_weights=weights)
