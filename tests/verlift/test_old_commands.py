"""Launch commands as verl's users wrote them for versions 0.2 to 0.9, and a thousand ways to get one wrong.

Each is read, or refused by one typed message that names a key or quotes what was typed.
"""

import random
import re
import shlex
import subprocess
import sys
from collections.abc import Callable

import pytest
from omegaconf import OmegaConf

from runtime.config import load_config
from runtime.config.composing import main_config
from runtime.config.flat import raw_leaves, with_groups
from runtime.config.tables import aliases, old_defaults
from runtime.errors import VerliftError
from shared_algos.errors import AlgorithmError

COMMON = """
data.train_files=/data/gsm8k/train.parquet data.val_files=/data/gsm8k/test.parquet data.train_batch_size=1024
data.max_prompt_length=512 data.max_response_length=1024 actor_rollout_ref.actor.optim.lr=1e-6
actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct actor_rollout_ref.actor.ppo_mini_batch_size=256
actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm
actor_rollout_ref.rollout.gpu_memory_utilization=0.6 trainer.n_gpus_per_node=8 trainer.nnodes=1
trainer.project_name=verl_examples trainer.experiment_name=mine trainer.save_freq=20 trainer.test_freq=5
trainer.total_epochs=15
"""

GRPO = """
algorithm.adv_estimator=grpo data.filter_overlong_prompts=True data.truncation='error'
actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.model.enable_gradient_checkpointing=True
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=40 actor_rollout_ref.actor.use_kl_loss=True
actor_rollout_ref.actor.kl_loss_coef=0.001 actor_rollout_ref.actor.kl_loss_type=low_var_kl
actor_rollout_ref.actor.entropy_coeff=0 actor_rollout_ref.actor.fsdp_config.param_offload=False
actor_rollout_ref.actor.fsdp_config.optimizer_offload=False actor_rollout_ref.rollout.n=5
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=40
actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=40 actor_rollout_ref.ref.fsdp_config.param_offload=True
algorithm.use_kl_in_reward=False trainer.critic_warmup=0 trainer.logger="['console','wandb']"
"""

COMMANDS = {
    "qwen2-7b grpo, 0.3": GRPO,
    "ppo with a critic, 0.2": """
        algorithm.adv_estimator=gae actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16
        actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 critic.optim.lr=1e-5
        critic.model.path=Qwen/Qwen2-7B-Instruct critic.model.use_remove_padding=True
        critic.ppo_micro_batch_size_per_gpu=32
        critic.model.enable_gradient_checkpointing=True critic.model.fsdp_config.param_offload=False
        critic.model.fsdp_config.optimizer_offload=False algorithm.kl_ctrl.kl_coef=0.001 trainer.critic_warmup=0
        trainer.val_generations_to_log_to_wandb=1 +trainer.val_before_train=False trainer.default_hdfs_dir=null
        actor_rollout_ref.actor.checkpoint.contents="['model','optimizer']" trainer.logger="['console']"
    """,
    "dapo, 0.4": """
        algorithm.adv_estimator=grpo data.prompt_key=prompt data.truncation='left' data.gen_batch_size=3072
        algorithm.use_kl_in_reward=False algorithm.kl_ctrl.kl_coef=0.0 actor_rollout_ref.actor.use_kl_loss=False
        actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28
        actor_rollout_ref.actor.clip_ratio_c=10.0 algorithm.filter_groups.enable=True
        algorithm.filter_groups.max_num_gen_batches=10 algorithm.filter_groups.metric=acc
        actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.actor.use_dynamic_bsz=True
        actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
        actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192 actor_rollout_ref.rollout.n=16
        +actor_rollout_ref.model.override_config.attention_dropout=0.
        actor_rollout_ref.actor.optim.lr_warmup_steps=10 actor_rollout_ref.actor.optim.weight_decay=0.1
        actor_rollout_ref.actor.grad_clip=1.0 actor_rollout_ref.actor.loss_agg_mode=token-mean
        actor_rollout_ref.actor.ulysses_sequence_parallel_size=1 actor_rollout_ref.rollout.enable_chunked_prefill=True
        actor_rollout_ref.rollout.val_kwargs.temperature=1.0 actor_rollout_ref.rollout.val_kwargs.top_p=0.7
        actor_rollout_ref.rollout.val_kwargs.do_sample=True actor_rollout_ref.rollout.val_kwargs.n=1
        reward_model.reward_manager=dapo reward_model.overlong_buffer.enable=True reward_model.overlong_buffer.len=512
        reward_model.overlong_buffer.penalty_factor=1.0 trainer.resume_mode=auto
    """,
    "rloo, 0.3": """
        algorithm.adv_estimator=rloo actor_rollout_ref.rollout.n=5 algorithm.use_kl_in_reward=True
        algorithm.kl_penalty=kl algorithm.kl_ctrl.kl_coef=0.001 actor_rollout_ref.actor.use_kl_loss=False
        actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=80 actor_rollout_ref.rollout.mode=sync
        actor_rollout_ref.actor.optim.warmup_style=cosine
    """,
    "remax, 0.4": """
        algorithm.adv_estimator=remax actor_rollout_ref.rollout.n=4 algorithm.use_kl_in_reward=True
        actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=30000
        actor_rollout_ref.rollout.use_fire_sampling=False trainer.val_only=False
    """,
    "reinforce++, 0.4": """
        algorithm.adv_estimator=reinforce_plus_plus actor_rollout_ref.actor.use_kl_loss=True
        actor_rollout_ref.actor.kl_loss_type=mse actor_rollout_ref.rollout.n=8 ray_init.num_cpus=32
        reward_model.launch_reward_fn_async=True trainer.max_actor_ckpt_to_keep=1
    """,
    "gsm8k megatron, 0.5": """
        algorithm.adv_estimator=gae actor_rollout_ref.actor.strategy=megatron critic.strategy=megatron
        actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4
        actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 critic.ppo_micro_batch_size_per_gpu=4
    """,
    "sglang multi-turn, 0.5": """
        algorithm.adv_estimator=grpo data.return_raw_chat=True actor_rollout_ref.rollout.name=sglang
        actor_rollout_ref.rollout.mode=async actor_rollout_ref.rollout.multi_turn.enable=True
        actor_rollout_ref.rollout.multi_turn.max_assistant_turns=5
        actor_rollout_ref.rollout.multi_turn.tool_config_path=examples/sglang_multiturn/config/tool.yaml
    """,
    "lora, 0.5": """
        algorithm.adv_estimator=grpo actor_rollout_ref.model.lora_rank=64 actor_rollout_ref.model.lora_alpha=32
        actor_rollout_ref.model.target_modules=all-linear actor_rollout_ref.rollout.load_format=safetensors
        actor_rollout_ref.rollout.layered_summon=True actor_rollout_ref.rollout.n=5
    """,
    "geo3k vision, 0.4": """
        algorithm.adv_estimator=grpo data.image_key=images actor_rollout_ref.rollout.n=5
        actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache=True
        actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-7B-Instruct
    """,
    "a reward of one's own, 0.6": """
        algorithm.adv_estimator=grpo custom_reward_function.path=recipe/mine/reward.py
        custom_reward_function.name=compute_score +custom_reward_function.reward_kwargs.alpha=0.5
        reward_model.reward_kwargs.max_resp_len=1024 reward_model.enable=False actor_rollout_ref.rollout.n=8
        algorithm.rollout_is=True algorithm.rollout_is_threshold=2.0 actor_rollout_ref.rollout.calculate_log_probs=True
        +ray_kwargs.ray_init.runtime_env.env_vars.TOKENIZERS_PARALLELISM=true trainer.use_legacy_worker_impl=disable
    """,
    "rollout correction, 0.7.0": """
        algorithm.adv_estimator=rloo actor_rollout_ref.rollout.n=8 algorithm.rollout_correction.rollout_is=token
        algorithm.rollout_correction.rollout_is_threshold=2.0 algorithm.rollout_correction.rollout_rs=geometric
        algorithm.rollout_correction.rollout_rs_threshold=1.001
        algorithm.rollout_correction.rollout_rs_threshold_lower=0.999
        algorithm.rollout_correction.rollout_token_veto_threshold=null
        actor_rollout_ref.rollout.update_weights_bucket_megabytes=1024 global_profiler.tool=nsys
    """,
    "bypass and gspo, 0.8": """
        algorithm.adv_estimator=grpo actor_rollout_ref.actor.policy_loss.loss_mode=gspo actor_rollout_ref.rollout.n=16
        algorithm.rollout_correction.bypass_mode=True algorithm.rollout_correction.loss_type=reinforce
        actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean actor_rollout_ref.actor.clip_ratio_low=3e-4
        critic.fsdp.param_offload=True skip.rollout.enable=False trainer.use_v1=True trainer.v1.trainer_mode=sync
    """,
    "asynchronous, 0.9": """
        algorithm.adv_estimator=grpo trainer.use_v1=True trainer.v1.trainer_mode=separate_async
        actor_rollout_ref.rollout.n=8 trainer.v1.separate_async.sync_staleness=2
    """,
}
"""By kind and version of verl. Each stands on ``COMMON``."""


def command(name: str, engine: str = "hf") -> list[str]:
    """The overrides of a command, unquoted as a shell does, with ``vllm`` replaced by ``engine``."""
    words = shlex.split(COMMON) + shlex.split(COMMANDS[name])
    return [word.replace("rollout.name=vllm", f"rollout.name={engine}") for word in words]


VALUES = (
    *("1", "2", "8", "64", "0.5", "true", "null", "grpo", "gae", "token-mean", "cpu", "[a]", "other"),
    *(
        "null",
        "None",
        "",
        "0",
        "-1",
        "1.5",
        "true",
        "False",
        "abc",
        "nan",
        "inf",
        "-inf",
        "1e999",
        "9" * 40,
        "0x10",
        "-0",
    ),
    *("[]", "[1,2]", "[[1],{a:2}]", "[a", "{}", "{a:1}", "{a:{b:null}}", "{a", "1,2", "range(1,3)", "choice(a,b)"),
    *(
        "'x",
        '"',
        "'it''s'",
        "\\",
        "a b",
        " x ",
        "\t",
        "\n",
        "#x",
        "a=b",
        "a:b",
        "a;b",
        "$(ls)",
        "@x",
        "!!python/name:os",
    ),
    *(
        "größe",
        "数据",
        "\u202e",
        "\x00",
        "🙂",
        "é" * 300,
        "${",
        "${}",
        "${nowhere}",
        "${data.train_batch_size}",
        "${.n}",
    ),
    *(
        "${oc.env:NO_SUCH_VARIABLE}",
        "${oc.env:HOME}",
        "${oc.select:nowhere,7}",
        "${no_resolver:1}",
        "${hydra:job.name}",
    ),
    *("'${nowhere}'", "${data}", "${trainer.logger}", "${${data.seed}}", "???", "~", "*", "1_2", "0.5_2", "5e-324"),
)
"""What may stand where a value is due."""


def _set_value(draw: random.Random, words: list[str], place: int) -> None:
    words[place] = f"{words[place].partition('=')[0]}={draw.choice(VALUES)}"


def _refer_to_itself(draw: random.Random, words: list[str], place: int) -> None:  # noqa: ARG001
    key = words[place].partition("=")[0].lstrip("+~")
    words[place] = f"{key}=${{{key}}}"


def _drop(draw: random.Random, words: list[str], place: int) -> None:  # noqa: ARG001
    del words[place]


def _repeat(draw: random.Random, words: list[str], place: int) -> None:
    words.insert(draw.randrange(len(words) + 1), words[place])


def _set_twice(draw: random.Random, words: list[str], place: int) -> None:
    words.append(f"{words[place].partition('=')[0]}={draw.choice(VALUES)}")


def _mistype_key(draw: random.Random, words: list[str], place: int) -> None:
    key, sign, value = words[place].partition("=")
    at = draw.randrange(len(key))
    middle = draw.choice(("", key[at] * 2, key[at : at + 2][::-1], draw.choice("abz_.-/@ 9é:"), ".."))
    words[place] = key[:at] + middle + key[at + 1 :] + sign + value


def _swap_values(draw: random.Random, words: list[str], place: int) -> None:
    other = words[draw.randrange(len(words))].partition("=")[2]
    words[place] = f"{words[place].partition('=')[0]}={other}"


def _prefix(draw: random.Random, words: list[str], place: int) -> None:
    words[place] = draw.choice(("+", "++", "~", "+++", "-", "--", "~~", " ", "=")) + words[place].lstrip("+~")


def _delete_key(draw: random.Random, words: list[str], place: int) -> None:
    key = words[place].partition("=")[0].lstrip("+~")
    words[place] = "~" + (key if draw.random() < 0.5 else key.rpartition(".")[0] or key)


def _cut(draw: random.Random, words: list[str], place: int) -> None:
    words[place] = words[place][: draw.randrange(len(words[place]))]


def _set_group(draw: random.Random, words: list[str], place: int) -> None:
    group = words[place].partition("=")[0].lstrip("+~").rpartition(".")[0] or "trainer"
    words[place] = f"{draw.choice(('', '+', '++'))}{group}={draw.choice(VALUES)}"


def _nest(draw: random.Random, words: list[str], place: int) -> None:
    key, sign, value = words[place].partition("=")
    words[place] = f"{draw.choice(('', '+'))}{key.lstrip('+~')}.{draw.choice(('x', '0', 'path', 'a.b'))}{sign}{value}"


def _quote(draw: random.Random, words: list[str], place: int) -> None:
    key, sign, value = words[place].partition("=")
    mark = draw.choice("'\"`")
    words[place] = draw.choice(
        (f"{key}{sign}{mark}{value}{mark}", f"{mark}{words[place]}{mark}", f"{key}{sign}{mark}{value}")
    )


def _space(draw: random.Random, words: list[str], place: int) -> None:
    key, sign, value = words[place].partition("=")
    words[place] = draw.choice(
        (f"{key} {sign} {value}", f"{key}{sign} {value}", f" {words[place]} ", f"{key}{sign}{value}\n")
    )


MUTATIONS: tuple[Callable[[random.Random, list[str], int], None], ...] = (
    *(_set_value,) * 6,
    *(_refer_to_itself, _drop, _repeat, _set_twice, _mistype_key, _mistype_key, _swap_values, _prefix, _prefix),
    *(_delete_key, _cut, _set_group, _nest, _quote, _space),
)


def mutated(seed: int) -> list[str]:
    """A command with one to three things changed; the same for the same seed."""
    draw = random.Random(seed)
    words = command(draw.choice(sorted(COMMANDS)), draw.choice(("hf", "hf", "hf", "vllm")))
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        draw.choice(MUTATIONS)(draw, words, draw.randrange(len(words)))
    return words


KNOWN = with_groups({*old_defaults(), *raw_leaves(main_config()), *aliases()})
REFUSED = {
    "gsm8k megatron, 0.5": "the Megatron engine is not built",
    "sglang multi-turn, 0.5": "multi-turn rollout is not built yet",
    "lora, 0.5": "LoRA is not built yet",
    "asynchronous, 0.9": "asynchronous training is not built yet",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_old_command_is_read_or_says_what_is_not_built(name):
    if name not in REFUSED:
        load_config("ppo_trainer", command(name))
        with pytest.raises(VerliftError, match="rollout with vLLM is not built yet; use hf"):
            load_config("ppo_trainer", command(name, engine="vllm"))
    else:
        with pytest.raises(VerliftError, match=REFUSED[name]):
            load_config("ppo_trainer", command(name))


@pytest.mark.parametrize(
    ("name", "key", "kind"),
    [
        ("ppo with a critic, 0.2", "trainer.val_generations_to_log_to_wandb", "moved"),
        ("ppo with a critic, 0.2", "actor_rollout_ref.actor.checkpoint.contents", "converted"),
        ("dapo, 0.4", "reward_model.overlong_buffer.len", "moved"),
        ("rloo, 0.3", "actor_rollout_ref.rollout.mode", "converted"),
        ("rloo, 0.3", "actor_rollout_ref.actor.optim.warmup_style", "moved"),
        ("reinforce++, 0.4", "reward_model.launch_reward_fn_async", "inert"),
        ("a reward of one's own, 0.6", "custom_reward_function.path", "moved"),
        ("a reward of one's own, 0.6", "algorithm.rollout_is", "converted"),
        ("rollout correction, 0.7.0", "algorithm.rollout_correction.rollout_rs", "converted"),
    ],
)
def test_what_became_of_an_old_key_is_told(name, key, kind):
    assert (key, kind) in {(note.key, note.kind) for note in load_config("ppo_trainer", command(name)).notes}


def names_something(message: str, words: list[str]) -> bool:
    """Whether a message quotes an override, or names the key of one or a key that is known."""
    if any(repr(word) in message or (word and word in message) for word in words):
        return True
    keys = {word.partition("=")[0].strip(" +~") for word in words} | KNOWN
    return any(name in keys and ("." in name or repr(name) in message) for name in re.findall(r"[\w.]*\w", message))


def refusal(words: list[str]) -> str | None:
    """The message that refuses a command, or None where it is read whole."""
    try:
        config = load_config("ppo_trainer", words).config
    except (VerliftError, AlgorithmError) as error:
        return str(error)
    OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    return None


@pytest.mark.parametrize("start", range(0, 1000, 50))
def test_a_mutated_command_is_read_or_refused_by_name(start):
    """Any other exception ends the test, with the seed in its note."""
    for seed in range(start, start + 50):
        words = mutated(seed)
        try:
            message = refusal(words)
        except BaseException as error:
            error.add_note(f"seed {seed}: {words}")
            raise
        assert message is None or names_something(message, words), (seed, words, message)
        assert message is None or "\n" not in message, (seed, words, message)


def test_the_mutations_repeat_and_differ():
    assert [mutated(seed) for seed in range(20)] == [mutated(seed) for seed in range(20)]
    assert len({tuple(mutated(seed)) for seed in range(1000)}) > 990


@pytest.mark.evidence
@pytest.mark.parametrize("seed", range(0, 1000, 50))
def test_a_mutated_command_as_a_program_says_the_same(seed):
    """20 of the thousand as they are typed: `python -m verl.trainer.main_ppo` under `verlift exec`."""
    words = mutated(seed)
    program = ["python", "-m", "verl.trainer.main_ppo", "--cfg", "job", *words]
    done = subprocess.run(
        [sys.executable, "-m", "verlift.main", "exec", "--", *program],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    message = refusal(words)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == (0 if message is None else 2), done.stderr
    assert message is None or names_something(done.stderr, words), done.stderr
