"""``compute_advantage`` and its companions on a ``DataProto``; ``tests/oracle`` compares their values with verl's."""

import pytest
import torch
from omegaconf import OmegaConf

from compat.errors import MissingColumnError
from compat.ppo.advantage import apply_kl_penalty, compute_advantage
from compat.ppo.core_algos import AdvantageEstimator, FixedKLController, get_adv_estimator_fn, register_adv_est
from compat.ppo.errors import BadSettingError
from compat.ppo.metrics import compute_data_metrics
from shared_algos.errors import UnknownAlgorithmError


def test_it_sets_columns_in_place_and_makes_the_response_mask(make_batch):
    data = make_batch()
    assert "response_mask" not in data.batch
    assert compute_advantage(data, adv_estimator=AdvantageEstimator.GRPO, norm_adv_by_std_in_grpo=False) is data
    assert data.batch["response_mask"].sum() == 9
    assert data.batch["advantages"].tolist() == [[0.5, 0.5, 0.5], [-0.5, -0.5, 0], [1, 0, 0], [-1, -1, -1]]


@pytest.mark.parametrize("name", ["grpo", "grpo_vectorized", "gdpo", "grpo_passk"])
def test_a_setting_that_is_accepted_is_followed(make_batch, name):
    """verl drops it for two of them; docs/deviations.md, D16."""
    columns = []
    for by_std in (True, False):
        config = OmegaConf.create({"norm_adv_by_std_in_grpo": by_std})
        data = compute_advantage(make_batch(), name, norm_adv_by_std_in_grpo=by_std, config=config)
        columns.append(data.batch["advantages"])
    assert not columns[0].equal(columns[1])


def test_a_recipes_estimator_gets_what_verl_gives_and_what_it_requires(make_batch):
    seen = {}

    @register_adv_est("mine")
    def mine(token_level_rewards, response_mask, index, config=None, lam=7, **kwargs):
        seen.update(kwargs, index=index, config=config, lam=lam)
        return token_level_rewards * response_mask, token_level_rewards

    @register_adv_est("strict")
    def strict(*, token_level_rewards, response_mask, values, gamma):
        return token_level_rewards - gamma * values, response_mask.float()

    data = make_batch(values=torch.ones(4, 3), reward_baselines=torch.ones(4))
    config = OmegaConf.create({"anything": 1})
    compute_advantage(data, "mine", gamma=0.5, lam=0.9, config=config)
    assert seen.pop("reward_baselines").tolist() == [1, 1, 1, 1]
    assert seen.pop("index").tolist() == ["a", "a", "b", "b"]
    assert seen == {"config": config, "lam": 7}, "a default stays as it is, as in verl"
    assert data.batch["advantages"].equal(data.batch["token_level_rewards"])
    compute_advantage(data, "strict", gamma=0.5)
    assert data.batch["advantages"][1].tolist() == [-0.5, -0.5, -0.5]


def test_a_recipe_that_took_over_grpo_is_used_and_finds_the_built_in(make_batch):
    @register_adv_est(AdvantageEstimator.GRPO)
    def mine(token_level_rewards, response_mask, index, config=None):
        advantages, returns = get_adv_estimator_fn(AdvantageEstimator.GRPO)(
            token_level_rewards, response_mask, index, config, norm_adv_by_std_in_grpo=False
        )
        return 10 * advantages, returns

    assert compute_advantage(make_batch(), "grpo").batch["advantages"][0].tolist() == [5, 5, 5]


def test_what_is_missing_is_named(make_batch):
    with pytest.raises(MissingColumnError, match="no 'values'; it has"):
        compute_advantage(make_batch(), "gae")
    with pytest.raises(AssertionError, match="calculate_sum_pi_squared"):
        compute_advantage(make_batch(), "optimal_token_baseline")
    with pytest.raises(BadSettingError, match="sum_pi_squared"):
        compute_advantage(make_batch(), "tir_optimal_token_baseline")
    with pytest.raises(UnknownAlgorithmError, match="'grpo'"):
        compute_advantage(make_batch(), "grop")

    @register_adv_est("wanting")
    def wanting(token_level_rewards, response_mask, teacher_log_prob):
        """Never called."""

    with pytest.raises(MissingColumnError, match=r"wanting.*requires 'teacher_log_prob'"):
        compute_advantage(make_batch(), "wanting")


def test_pf_ppo_draws_whole_rows(make_batch):
    data = make_batch(values=torch.zeros(4, 3))
    data.batch["row"] = torch.arange(4)
    config = OmegaConf.create({"use_pf_ppo": True, "pf_ppo": {"reweight_method": "pow", "weight_pow": 2.0}})
    torch.manual_seed(0)
    drawn = compute_advantage(data, "gae", config=config)
    rows = drawn.batch["row"].tolist()
    assert 1 not in rows, "its score is 0"
    assert drawn.non_tensor_batch["uid"].tolist() == [data.non_tensor_batch["uid"][row] for row in rows]
    assert drawn.meta_info["global_token_num"] == [data.meta_info["global_token_num"][row] for row in rows]
    assert drawn.batch["returns"].equal(data.batch["returns"][rows])
    assert data.batch["row"].tolist() == [0, 1, 2, 3], "the batch that was given is left alone"


@pytest.mark.parametrize("function", [compute_advantage, apply_kl_penalty])
def test_up_to_0_4_a_loss_mask_says_what_the_model_generated(make_batch, function):
    """A tool's answer in the middle of a response has no advantage and costs no KL."""
    mask = torch.tensor([[1, 0, 1], [1, 1, 0], [1, 0, 0], [0, 0, 1]])
    data = make_batch(ref_log_prob=torch.full((4, 3), -1.5), loss_mask=torch.cat([torch.zeros(4, 2).long(), mask], 1))
    argument = "grpo" if function is compute_advantage else FixedKLController(0.1)
    function(make_batch(ref_log_prob=torch.zeros(4, 3)), argument, multi_turn=True)  # a batch that has none
    function(data, argument, multi_turn=True)
    assert data.batch["response_mask"].equal(mask)
    if function is compute_advantage:
        assert data.batch["advantages"][0, 1] == 0
    else:
        assert data.batch["token_level_rewards"].tolist()[3] == pytest.approx([0.0, 0.0, 0.95])


def test_figures_of_a_batch_without_a_response_mask(make_batch):
    """As batches were up to verl 0.3; nothing is added to it."""
    data = make_batch(advantages=torch.ones(4, 3), returns=torch.ones(4, 3))
    figures = compute_data_metrics(data, use_critic=False)
    assert figures["critic/advantages/mean"] == 1
    assert figures["response_length/mean"] == 2.25
    assert "response_mask" not in data.batch


def test_kl_in_the_reward(make_batch):
    data = make_batch(ref_log_prob=torch.full((4, 3), -1.5))
    data, metrics = apply_kl_penalty(data, FixedKLController(0.1), kl_penalty="kl", multi_turn=False)
    assert metrics == {"actor/reward_kl_penalty": pytest.approx(0.5), "actor/reward_kl_penalty_coeff": 0.1}
    assert data.batch["token_level_rewards"][1].tolist() == pytest.approx([-0.05, -0.05, 0])
    data, metrics = apply_kl_penalty(make_batch(), FixedKLController(0.1))
    assert set(metrics.values()) == {0.0}, "up to verl 0.3 it was called without a reference, too"
    assert data.batch["token_level_rewards"].equal(data.batch["token_level_scores"])
