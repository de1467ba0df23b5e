"""Values that cannot run are refused when the config is read, with keys and numbers in the message."""

import pytest

from runtime.agent_loop import AGENT_LOOPS
from runtime.algorithms import policy_loss_name
from runtime.config import (
    load_config,
    num_ranks,
    plays_baseline,
    uses_critic,
    uses_reference,
    writes_sum_pi_squared,
)
from runtime.errors import BatchSizeError, ConfigError, RewardError
from runtime.reward import registry

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["trainer.n_gpus_per_node=3"], ["data.train_batch_size", "= 32", "n_gpus_per_node = 3", "30 or 33"]),
        (["data.train_batch_size=6"], ["data.train_batch_size = 6", "ppo_mini_batch_size = 4", "4 or 8"]),
        (["data.train_batch_size=2"], ["ppo_mini_batch_size=4", "data.train_batch_size=2"]),
        (
            [f"{ROLLOUT}.n=1", f"{ACTOR}.ppo_mini_batch_size=2", "trainer.n_gpus_per_node=4"],
            ["ppo_mini_batch_size * actor_rollout_ref.rollout.n = 2", "= 4"],
        ),
        (
            ["algorithm.adv_estimator=gae", "critic.ppo_mini_batch_size=3"],
            ["data.train_batch_size = 8", "critic.ppo_mini_batch_size = 3"],
        ),
        (
            [f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=40"],
            ["ppo_max_token_len_per_gpu=40", "= 48"],
        ),
    ],
)
def test_counts_that_do_not_fit_name_both_numbers_and_keys(overrides, words):
    with pytest.raises(BatchSizeError) as caught:
        load_config("tiny", overrides)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.train_batch_size=abc", "must be an integer, got 'abc'"),
        ("data.train_batch_size=1.5", "must be an integer, got 1.5"),
        ("data.train_batch_size=null", "must be an integer, got None"),
        ("data.train_batch_size=0", "at least 1, got 0"),
        ("trainer.use_v1=1", "must be true or false, got 1"),
        ("data.train_files=3", None),
        ("data.shuffle={}", "must be true or false"),
        ("trainer.nnodes=-1", "at least 1"),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=0", "at least 1, got 0"),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=true", "at least 1, got True"),
        ("data.max_response_length=0", "at least 1, got 0"),
        (f"{ROLLOUT}.temperature=0", "cannot be sampled from"),
        (f"{ROLLOUT}.temperature=-1", "is not between 0"),
        (f"{ROLLOUT}.top_p=0", "above 0"),
        (f"{ROLLOUT}.top_k=0", "-1 (no cut) or at least 1"),
        ("algorithm.gamma=1.5", "not between 0 and 1"),
        ("algorithm.adv_estimator=grop", "the nearest is 'grpo'"),
        (f"{ACTOR}.loss_agg_mode=token_mean", "the nearest is 'token-mean'"),
        (f"{ACTOR}.policy_loss.loss_mode=vanila", "the nearest is 'vanilla'"),
        (f"{ACTOR}.kl_loss_type=low_var", "is not one of"),
        (f"{ACTOR}.clip_ratio_c=1.0", "must be above 1"),
        (f"{ACTOR}.loss_scale_factor=0", "must be above 0: it is a divisor"),
        (f"{ACTOR}.loss_scale_factor=abc", "must be a number, got 'abc'"),
        ("critic.loss_scale_factor=0", "must be above 0: it is a divisor"),
        (f"{ACTOR}.grad_clip=0", "above 0"),
        ("critic.grad_clip=-1", "above 0"),
        (f"{ACTOR}.optim.betas=[0.9]", "must be two numbers"),
        (f"{ACTOR}.optim.betas=[0.9,1.0]", "must be two numbers"),
        ("critic.optim.betas=[a,0.9]", "must be two numbers"),
        (f"{ACTOR}.optim.weight_decay=-1", "not between 0"),
        ("data.seed=abc", "must be an integer, got 'abc'"),
        ("data.seed=-1", "not between 0"),
        (f"{ROLLOUT}.response_length=17", "is more than data.max_response_length=16"),
        (f"{ROLLOUT}.prompt_length=33", "data.max_prompt_length is the one limit"),
        (f"{ROLLOUT}.agent.default_agent_loop=nope", "no agent loop 'nope'; there are ['replay_agent', 'single_turn"),
        ("reward.reward_manager.name=dappo", "'dappo' is not known; there are ['batch', 'dapo'"),
        ("reward.reward_manager.source=importlib", "needs a file in reward.reward_manager.module.path"),
        (f"{ROLLOUT}.name=vllm", "rollout with vLLM is not built yet"),
        (f"{ACTOR}.strategy=megatron", "Megatron engine is not built"),
        ("trainer.v1.trainer_mode=separate_async", "asynchronous training is not built yet"),
        ("trainer.logger=[console,swanlab]", "'swanlab' is not one of"),
        ("critic.enable=perhaps", "critic.enable='perhaps'"),
        ("algorithm.use_pf_ppo=true", "needs algorithm.adv_estimator=gae, not grpo"),
        ("algorithm.pf_ppo.reweight_method=max_mean", "the nearest is 'max_min'"),
        ("algorithm.pf_ppo.weight_pow=-1", "not between 0 and inf"),
    ],
)
def test_a_bad_value_is_refused_with_its_key(override, words):
    if words is None:
        assert load_config("tiny", [override]).config.data.train_files == "3"  # a bare number is text where text is due
        return
    with pytest.raises(ConfigError) as caught:
        load_config("tiny", [override])
    assert words in str(caught.value)
    assert override.partition("=")[0].rpartition(".")[2] in str(caught.value)


@pytest.mark.parametrize("key", ["target_kl", "horizon"])
def test_adaptive_kl_control_divides_by_its_target_and_horizon(key):
    load_config("tiny", [f"algorithm.kl_ctrl.{key}=0"])
    with pytest.raises(ConfigError, match=rf"algorithm\.kl_ctrl\.{key}=0 must be above 0"):
        load_config("tiny", [f"algorithm.kl_ctrl.{key}=0", "algorithm.kl_ctrl.type=adaptive"])


def test_a_shorter_response_than_the_widest_is_fine():
    assert load_config("tiny", [f"{ROLLOUT}.response_length=8"]).config.data.max_response_length == 16


REGISTERING = """
from runtime.agent_loop import AGENT_LOOPS, AgentLoopBase
from runtime.reward import NaiveRewardManager, register_reward_manager

@register_reward_manager("registered_by_a_test")
class Mine(NaiveRewardManager):
    pass

@AGENT_LOOPS.register("loop_of_a_test")
class Loop(AgentLoopBase):
    async def run(self, sample):
        return []

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return 0.0
"""


def test_names_that_the_file_of_the_reward_function_registers_are_known(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_managers", dict(registry._managers))
    monkeypatch.setattr(AGENT_LOOPS, "_classes", dict(AGENT_LOOPS._classes))
    (tmp_path / "mine.py").write_text(REGISTERING)
    names = ["reward.reward_manager.name=registered_by_a_test", f"{ROLLOUT}.agent.default_agent_loop=loop_of_a_test"]
    with pytest.raises(ConfigError, match="registered_by_a_test"):
        load_config("tiny", names)
    load_config("tiny", [*names, f"reward.custom_reward_function.path={tmp_path}/mine.py"])
    with pytest.raises(RewardError, match=r"no Python file 'gone\.py'"):
        load_config("tiny", ["reward.reward_manager.name=other", "reward.custom_reward_function.path=gone.py"])


def test_gae_needs_a_critic():
    assert uses_critic(load_config("tiny", ["algorithm.adv_estimator=gae"]).config)
    assert not uses_critic(load_config("tiny").config)
    assert uses_critic(load_config("tiny", ["critic.enable=true"]).config)
    with pytest.raises(ConfigError, match=r"gae needs 'values', which the legacy trainer .*critic\.enable=true"):
        load_config("tiny", ["algorithm.adv_estimator=gae", "critic.enable=false", "trainer.use_v1=false"])


@pytest.mark.parametrize("key", ["algorithm.use_kl_in_reward", f"{ACTOR}.use_kl_loss"])
def test_kl_turns_the_reference_policy_on(key):
    assert not uses_reference(load_config("tiny").config)
    assert uses_reference(load_config("tiny", [f"{key}=true"]).config)


def test_validation_needs_a_file():
    with pytest.raises(ConfigError, match=r"data\.val_files is null"):
        load_config("tiny", ["data.val_files=null", "trainer.test_freq=1"])
    load_config("tiny", ["data.val_files=null"])


def test_ranks_are_nodes_times_devices():
    assert num_ranks(load_config("tiny", ["trainer.nnodes=2", "trainer.n_gpus_per_node=2"]).config) == 4


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ([f"{ROLLOUT}.top_k=5"], f"{ROLLOUT}.top_k"),
        ([f"{ROLLOUT}.top_p=0.9"], f"{ROLLOUT}.top_p"),
        ([f"{ACTOR}.clip_ratio=0.1"], f"{ACTOR}.clip_ratio"),
        ([f"{ROLLOUT}.do_sample=false"], f"{ROLLOUT}.do_sample"),
    ],
)
def test_what_runs_but_deserves_a_word_is_noted(overrides, key):
    assert [(note.key, note.kind) for note in load_config("tiny", overrides).notes] == [(key, "warning")]


def test_clip_ratio_counts_where_low_and_high_are_null():
    overrides = [f"{ACTOR}.clip_ratio=0.1", f"{ACTOR}.clip_ratio_low=null", f"{ACTOR}.clip_ratio_high=null"]
    assert load_config("tiny", overrides).notes == ()


def test_a_missing_micro_batch_size_is_filled_in_and_noted():
    (note,) = load_config("tiny", [f"{ACTOR}.ppo_micro_batch_size_per_gpu=null"]).notes
    assert (note.key, note.kind) == (f"{ACTOR}.ppo_micro_batch_size_per_gpu", "default")


def test_an_old_global_micro_batch_size_is_refused():
    with pytest.raises(ConfigError, match="set ppo_micro_batch_size_per_gpu"):
        load_config("tiny", [f"{ACTOR}.ppo_micro_batch_size=8"])


CORRECTION = "algorithm.rollout_correction"


@pytest.mark.parametrize("trainer", ["V1", "legacy"])
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithm.adv_estimator=gae", "critic.enable=false"], ["gae needs 'values'", "critic.enable=true"]),
        (["algorithm.adv_estimator=gdpo"], ["gdpo needs 'reward_components'", "algorithm.gdpo_reward_keys"]),
        (
            ["algorithm.adv_estimator=optimal_token_baseline", f"{CORRECTION}.bypass_mode=true"],
            ["optimal_token_baseline needs 'sum_pi_squared'", "bypass_mode=false"],
        ),
    ],
)
def test_an_input_that_will_be_missing_names_key_trainer_and_way_out(trainer, overrides, words):
    with pytest.raises(ConfigError) as caught:
        load_config("tiny", [*overrides, f"trainer.use_v1={trainer == 'V1'}"])
    assert all(word in str(caught.value) for word in [*words, f"the {trainer} trainer"]), str(caught.value)


@pytest.mark.parametrize("use_v1", [True, False])
@pytest.mark.parametrize("estimator", ["remax", "optimal_token_baseline", "tir_optimal_token_baseline"])
def test_case_6_what_verls_v1_could_not_run_is_provided(use_v1, estimator):
    config = load_config("tiny", [f"algorithm.adv_estimator={estimator}", f"trainer.use_v1={use_v1}"]).config
    assert plays_baseline(config) == (estimator == "remax")
    assert writes_sum_pi_squared(config) == (estimator != "remax")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([f"{ACTOR}.policy_loss.loss_mode=dro"], ["dro_beta"]),
        ([f"{ACTOR}.policy_loss.loss_mode=bypass_mode"], [f"{CORRECTION}.bypass_mode=true"]),
        ([f"{ACTOR}.tau_pos=0"], ["tau_pos"]),
        ([f"{ACTOR}.policy_loss.kl_cov_ratio=2"], ["kl_cov_ratio", "2"]),
        ([f"{CORRECTION}.rollout_is=seq"], [CORRECTION, "rollout_is", "'seq'", "sequence"]),
        ([f"{CORRECTION}.rollout_is_threshold=-1"], ["rollout_is_threshold", "-1"]),
        ([f"{CORRECTION}.rollout_rs=token_k4"], ["token_k4"]),
        ([f"{CORRECTION}.rollout_rs=token_k2"], ["rollout_rs_threshold"]),
        (
            [f"{CORRECTION}.rollout_is=token", f"{ROLLOUT}.calculate_log_probs=false"],
            [f"{CORRECTION}.rollout_is", "calculate_log_probs=true"],
        ),
        (
            [f"{CORRECTION}.bypass_mode=true", f"{ROLLOUT}.calculate_log_probs=false"],
            [f"{CORRECTION}.bypass_mode", "calculate_log_probs=true"],
        ),
        (
            [f"{CORRECTION}.bypass_mode=true", f"{ACTOR}.calculate_sum_pi_squared=true"],
            ["calculate_sum_pi_squared=true", "bypass_mode=true"],
        ),
        (
            ["algorithm.gdpo_reward_keys=[a,b]", "algorithm.gdpo_reward_weights=[1]"],
            ["gdpo_reward_weights has 1", "gdpo_reward_keys has 2"],
        ),
        (
            ["algorithm.gdpo_reward_keys=[a,b]", "algorithm.gdpo_reward_weights=[x,y]"],
            ["gdpo_reward_weights holds 'x'", "numbers"],
        ),
        (
            ["algorithm.adv_estimator=grpo_passk", f"{ROLLOUT}.n=1", f"{ACTOR}.ppo_mini_batch_size=8"],
            ["grpo_passk", f"{ROLLOUT}.n=1"],
        ),
        ([f"{ACTOR}.tau_pos=inf"], ["tau_pos", "finite"]),
        ([f"{ACTOR}.entropy_coeff=nan"], ["entropy_coeff=nan"]),
        (["critic.cliprange_value=0"], ["cliprange_value must be positive"]),
        (["algorithm.filter_groups.enable=true"], ["algorithm.filter_groups.metric"]),
        (
            [
                "algorithm.filter_groups.enable=true",
                "algorithm.filter_groups.metric=seq_final_reward",
                "algorithm.use_kl_in_reward=true",
            ],
            ["seq_final_reward", "set it to reward"],
        ),
    ],
)
def test_settings_of_algorithms_are_refused_when_the_config_is_read(overrides, words):
    with pytest.raises(ConfigError) as caught:
        load_config("tiny", overrides)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (["loss_type=reinforce"], "loss_type"),
        (["rollout_rs_threshold=2"], "rollout_rs_threshold"),
        (["rollout_is_batch_normalize=true"], "rollout_is_batch_normalize"),
        (["bypass_mode=true", "rollout_is=token"], "rollout_is"),
    ],
)
def test_corrections_that_change_no_result_are_told(settings, field):
    notes = load_config("tiny", [f"{CORRECTION}.{setting}" for setting in settings]).notes
    assert [note.key for note in notes if "changes no result" in note.message] == [f"{CORRECTION}.{field}"]


@pytest.mark.parametrize("typed", ["0.5_2", "0.5_2.0", "'0.5_2'", "0.999_1.001", "1e-1_5"])
def test_two_bounds_stay_two_bounds(typed):
    """hydra alone reads 0.5_2 as the number 0.52."""
    config = load_config("tiny", [f"{CORRECTION}.rollout_is_threshold={typed}"]).config
    assert config.algorithm.rollout_correction.rollout_is_threshold == typed.strip("'")


def test_bypass_mode_chooses_the_loss_and_says_so():
    loaded = load_config("tiny", [f"{CORRECTION}.bypass_mode=true", f"{ACTOR}.policy_loss.loss_mode=gspo"])
    assert policy_loss_name(loaded.config) == "bypass_mode"
    assert any("bypass_mode chooses the loss" in note.message for note in loaded.notes)


def test_a_generation_batch_may_be_larger_than_the_step_where_groups_are_dropped():
    on = ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=reward"]
    assert load_config("tiny", [*on, "data.gen_batch_size=24"]).config.data.gen_batch_size == 24
    with pytest.raises(BatchSizeError, match="gen_batch_size"):
        load_config("tiny", ["data.gen_batch_size=24"])
