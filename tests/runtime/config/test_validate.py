"""Values that cannot run are refused when the config is read, with keys and numbers in the message."""

import pytest

from runtime.agent_loop import AGENT_LOOPS
from runtime.config import load_config, num_ranks, uses_critic, uses_reference
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
        ("reward.reward_manager.name=dapo", "'dapo' is not known; there are ['naive'"),
        ("reward.reward_manager.source=importlib", "needs a file in reward.reward_manager.module.path"),
        (f"{ROLLOUT}.name=vllm", "rollout with vLLM is not built yet"),
        (f"{ACTOR}.strategy=megatron", "Megatron engine is not built"),
        ("trainer.v1.trainer_mode=separate_async", "asynchronous training is not built yet"),
        ("trainer.logger=[console,swanlab]", "'swanlab' is not one of"),
        ("trainer.resume_from_path=x", "checkpoints are not built yet"),
        ("critic.enable=perhaps", "critic.enable='perhaps'"),
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
