"""Old call forms of ``core_algos``: names, positions and results as code of verl 0.2 to 0.8 has them."""

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from compat.errors import CustomFunctionError
from compat.ppo import core_algos
from compat.ppo.errors import BadSettingError, UnknownKindError
from shared_algos.errors import AlgorithmError

REWARDS = torch.tensor([[0.0, 1.0], [0.0, 0.0], [3.0, 0.0]])
MASK = torch.tensor([[1, 1], [1, 1], [1, 0]])
UIDS = np.array(["a", "a", "b"], dtype=object)


def test_estimators_by_the_names_of_every_version():
    by_name, _ = core_algos.compute_grpo_outcome_advantage(
        token_level_rewards=REWARDS, response_mask=MASK, index=UIDS, norm_adv_by_std_in_grpo=False
    )
    assert by_name.tolist() == [[0.5, 0.5], [-0.5, -0.5], [3.0, 0.0]]
    by_old_name, _ = core_algos.compute_grpo_outcome_advantage(
        token_level_rewards=REWARDS, eos_mask=MASK, index=UIDS, epsilon=1e-6, norm_adv_by_std_in_grpo=False
    )
    by_position, _ = core_algos.compute_grpo_outcome_advantage(REWARDS, MASK, UIDS, 1e-6, False)
    assert by_old_name.equal(by_name)
    assert by_position.equal(by_name)
    with pytest.raises(CustomFunctionError, match=r"epsilon 1e-06, not 0\.1"):
        core_algos.compute_grpo_outcome_advantage(REWARDS, MASK, UIDS, 0.1)
    with pytest.raises(TypeError, match="'response_mask' twice"):
        core_algos.compute_grpo_outcome_advantage(REWARDS, MASK, UIDS, eos_mask=MASK)
    with pytest.raises(TypeError, match="takes 6 arguments"):
        core_algos.compute_grpo_outcome_advantage(REWARDS, MASK, UIDS, 1e-6, True, None, 7)


def test_pass_at_k_reads_off_the_config_whether_to_divide_by_the_std():
    uids = np.array(["a", "a", "a"], dtype=object)
    by_config = {
        divide: core_algos.compute_grpo_passk_outcome_advantage(
            REWARDS, MASK, uids, config=OmegaConf.create({"norm_adv_by_std_in_grpo": divide})
        )[0][2, 0].item()
        for divide in (True, False)
    }
    assert by_config[False] == 2.0
    assert by_config[True] == pytest.approx(2 / (7 / 3) ** 0.5, rel=1e-5)


def test_token_level_estimators_in_their_old_forms():
    values = torch.zeros_like(REWARDS)
    _, returns = core_algos.compute_gae_advantage_return(REWARDS, values, MASK, torch.tensor(0.5), torch.tensor(1.0))
    assert returns.tolist() == [[0.5, 1.0], [0.0, 0.0], [3.0, 0.0]]
    for arguments in ({"gamma": torch.tensor(0.5)}, {"config": OmegaConf.create({"gamma": 0.5})}):
        _, returns = core_algos.compute_reinforce_plus_plus_outcome_advantage(REWARDS, response_mask=MASK, **arguments)
        assert returns.tolist() == [[0.5, 1.0], [0.0, 0.0], [3.0, 0.0]]
    _, by_position = core_algos.compute_reinforce_plus_plus_outcome_advantage(REWARDS, MASK, 0.5)
    assert by_position.equal(returns)
    advantages, _ = core_algos.compute_remax_outcome_advantage(REWARDS, torch.tensor([1.0, 0.5, 0.0]), MASK)
    assert advantages.tolist() == [[0.0, 0.0], [-0.5, -0.5], [3.0, 0.0]]


def test_gdpo_without_components_weighs_the_total():
    advantages, _ = core_algos.compute_gdpo_outcome_advantage(REWARDS, MASK, UIDS)
    assert advantages[0, 0] > 0 > advantages[1, 0]
    config = {"gdpo_reward_keys": ["format"]}
    with pytest.raises(CustomFunctionError, match="'format', which non_tensor_batch lacks; it has"):
        core_algos.compute_gdpo_outcome_advantage(
            REWARDS, MASK, UIDS, config=config, non_tensor_batch={"acc": [1, 2, 3]}
        )


def test_a_recipe_that_takes_over_a_name_leaves_the_function_alone():
    expected, _ = core_algos.compute_rloo_outcome_advantage(REWARDS, MASK, UIDS)

    @core_algos.register_adv_est("rloo")
    def mine(token_level_rewards, response_mask, index, config=None):  # noqa: ARG001
        advantages, returns = core_algos.compute_rloo_outcome_advantage(token_level_rewards, response_mask, index)
        return 2 * advantages, returns

    assert core_algos.ADV_ESTIMATOR_REGISTRY["rloo"] is mine
    assert mine(REWARDS, MASK, UIDS)[0].equal(2 * expected)


def test_the_old_policy_loss_returns_four_values_or_three():
    old, new = torch.zeros(2, 2), torch.tensor([[1.0, 0.0], [0.0, -2.0]])
    advantages, mask = torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), torch.tensor([[1, 1], [1, 0]])
    loss, clipped, ppo_kl, lower = core_algos.compute_policy_loss(old, new, advantages, mask, 0.2)
    assert float(loss) == pytest.approx((-1.2 - 1.0 + 1.0) / 3)
    assert [round(float(x), 4) for x in (clipped, ppo_kl, lower)] == [0.3333, -0.3333, 0.0]
    assert len(core_algos.compute_policy_loss(old, new, advantages, eos_mask=mask, cliprange=0.2)) == 3
    with pytest.raises(BadSettingError, match="needs cliprange"):
        core_algos.compute_policy_loss(old, new, advantages, mask, cliprange_low=0.2)
    with pytest.raises(AssertionError, match="clip_ratio_c=1"):
        core_algos.compute_policy_loss(old, new, advantages, mask, 0.2, clip_ratio_c=1.0)


def test_losses_name_the_mask_that_they_miss():
    ones = torch.ones(1, 2)
    for function, arguments in (
        (core_algos.compute_policy_loss, (ones, ones, ones)),
        (core_algos.compute_value_loss, (ones, ones, ones)),
        (core_algos.compute_entropy_loss, (torch.ones(1, 2, 3),)),
    ):
        with pytest.raises(TypeError, match="response_mask"):
            function(*arguments)
    assert float(core_algos.compute_entropy_loss(torch.zeros(1, 2, 4), eos_mask=ones)) == pytest.approx(np.log(4))


def test_kl_estimators_and_controllers():
    new, ref = torch.tensor([0.5], requires_grad=True), torch.tensor([0.0])
    assert core_algos.kl_penalty(logprob=new, ref_logprob=ref, kl_penalty="mse").item() == 0.125
    assert core_algos.kl_penalty_forward(new, ref, "k1").item() == 0.5
    with pytest.raises(NotImplementedError, match="no KL estimator 'full'"):
        core_algos.kl_penalty(new, ref, "full")
    with pytest.raises(UnknownKindError, match="without"):
        core_algos.kl_penalty_forward(new, ref, "k3+")
    settings = {"type": "adaptive", "kl_coef": 0.2, "target_kl": 0.1, "horizon": 10}
    adaptive = core_algos.get_kl_controller(OmegaConf.create(settings))
    adaptive.update(current_kl=1.0, n_steps=10)
    assert adaptive.value == pytest.approx(0.24)
    fixed = core_algos.get_kl_controller(OmegaConf.create({"type": "fixed", "kl_coef": 0.2}))
    fixed.update(1.0, 10)
    assert (fixed.value, core_algos.FixedKLController(kl_coef=0.3).value) == (0.2, 0.3)
    with pytest.raises(AssertionError, match="horizon=0"):
        core_algos.get_kl_controller(OmegaConf.create({**settings, "horizon": 0}))
    with pytest.raises(NotImplementedError, match="'linear'"):
        core_algos.get_kl_controller(OmegaConf.create({"type": "linear"}))


def test_bypass_mode_reads_the_correction_from_the_policy_loss_group():
    old, new = torch.zeros(2, 2), torch.tensor([[0.1, -0.1], [2.0, 0.0]])
    ones = torch.ones(2, 2)
    correction = {"loss_type": "reinforce", "rollout_is": "token", "rollout_rs": "token_k1"}
    config = {"policy_loss": {"rollout_correction": {**correction, "rollout_rs_threshold": "0.5_2.0"}}}
    loss, metrics = core_algos.compute_policy_loss_bypass_mode(old, new, ones, ones, "token-mean", config)
    weights = torch.tensor([0.1, -0.1, 0.0]).exp()  # the token of log-ratio 2 is rejected
    assert float(loss) == pytest.approx(float(-(weights * torch.tensor([0.1, -0.1, 0.0])).mean()), rel=1e-6)
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == 0.25
    with pytest.raises(AlgorithmError, match="rollout_correction"):
        core_algos.compute_policy_loss_bypass_mode(old, new, ones, ones, "token-mean", {})
