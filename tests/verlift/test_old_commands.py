"""Launch scripts as verl's users wrote them for versions 0.2 to 0.9, and a thousand ways to get one wrong.

Each is read, or refused by one typed message that names a key or quotes what was typed.
"""

import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from runtime.config import OLD_CODE, load_config
from runtime.config.composing import main_config
from runtime.config.flat import raw_leaves, with_groups
from runtime.config.tables import aliases, old_defaults
from runtime.errors import VerliftError
from shared_algos.errors import AlgorithmError
from verlift.main_ppo import parse, read

LAUNCHES = Path(__file__).with_name("launches")
"""Scripts as verl's users ran them, by kind and version; their third line says that they are read, or the refusal."""

NAMES = sorted(path.stem for path in LAUNCHES.glob("*.sh"))
TINY = [
    "actor_rollout_ref.model.path='tiny://model?seed=0'",
    "data.train_files='tiny://task?rows=64&seed=0'",
    "data.val_files='tiny://task?rows=16&seed=1'",
    "data.train_batch_size=8",
    "data.max_prompt_length=32",
    "data.max_response_length=16",
    "data.dataloader_num_workers=0",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.fsdp_config.dtype=float32",
    "actor_rollout_ref.ref.fsdp_config.dtype=float32",
    "critic.fsdp.dtype=float32",
    "actor_rollout_ref.rollout.dtype=float32",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "critic.model.path='tiny://model?seed=0'",
    "trainer.n_gpus_per_node=1",
    "trainer.nnodes=1",
    "trainer.total_training_steps=1",
    "trainer.save_freq=-1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
    "trainer.logger=[console]",
]
"""Overrides that make a script's model, data and sizes small."""


@cache
def command(name: str) -> tuple[str, ...]:
    """The arguments that a script gives its program, as bash expands them."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "python3")
        program.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
        program.chmod(0o755)
        environment = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HOME": "/root"}
        script = ["bash", str(LAUNCHES / f"{name}.sh")]
        done = subprocess.run(script, env=environment, capture_output=True, text=True, check=True)
    words = done.stdout.split("\0")[:-1]
    assert words[0] == "-m"
    return tuple(words[2:])


def refusal_of(name: str) -> str | None:
    """How the refusal of a script begins, or None where it is read."""
    verdict = (LAUNCHES / f"{name}.sh").read_text().splitlines()[2]
    assert verdict == "# read" or verdict.startswith("# refused: ")
    return None if verdict == "# read" else verdict.removeprefix("# refused: ")


MUTATED = [name for name in NAMES if not command(name)[0].startswith("--")]

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
    words = list(command(draw.choice(MUTATED)))
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        draw.choice(MUTATIONS)(draw, words, draw.randrange(len(words)))
    return words


KNOWN = with_groups({*old_defaults(), *raw_leaves(main_config()), *aliases()})


@pytest.mark.parametrize("name", NAMES)
def test_an_old_script_is_read_or_says_what_is_not_built(name, capsys):
    expected = refusal_of(name)
    if expected is None:
        config = read(parse(command(name)))
        OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        assert config.actor_rollout_ref.rollout.name == "hf"
        assert "played by this build's own engine hf" in capsys.readouterr().err
    else:
        with pytest.raises(VerliftError, match=re.escape(expected)):
            read(parse(command(name)))


def test_who_types_another_engine_today_is_refused():
    with pytest.raises(VerliftError, match="rollout with vLLM is not built yet; use hf"):
        load_config("ppo_trainer", command("grpo_qwen2_7b_0.3"))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ppo_deepseek7b_0.4", {"trainer.val_generations_to_log_to_wandb": "moved"}),
        ("ppo_deepseek7b_0.4", {"actor_rollout_ref.actor.checkpoint.contents": "converted"}),
        ("ppo_quickstart_0.2", {"critic.ppo_micro_batch_size": "converted"}),
        ("ppo_deepseek7b_sp2_0.3", {"actor_rollout_ref.actor.ulysses_sequence_parallel_size": "converted"}),
        ("dapo_qwen2.5_32b_0.4", {"reward_model.overlong_buffer.len": "moved"}),
        ("gspo_3b_math_0.6", {"actor_rollout_ref.actor.fsdp_config.fsdp_size": "inert"}),
        (
            "rloo_qwen2_7b_0.3",
            {"actor_rollout_ref.rollout.mode": "converted", "actor_rollout_ref.actor.optim.warmup_style": "moved"},
        ),
        ("reinforce_plus_plus_0.4", {"reward_model.launch_reward_fn_async": "inert"}),
        (
            "grpo_own_reward_0.6",
            {
                "custom_reward_function.path": "moved",
                "algorithm.rollout_is": "converted",
                "actor_rollout_ref.rollout.load_format": "inert",
                "actor_rollout_ref.rollout.gpu_memory_utilization": "inert",
                "actor_rollout_ref.rollout.tensor_model_parallel_size": "inert",
            },
        ),
        ("rollout_correction_0.7.0", {"algorithm.rollout_correction.rollout_rs": "converted"}),
    ],
)
def test_what_became_of_an_old_key_is_told(name, told):
    loaded = load_config("ppo_trainer", command(name), conversions=OLD_CODE)
    assert told.items() <= {note.key: note.kind for note in loaded.notes}.items()


def names_something(message: str, words: list[str]) -> bool:
    """Whether a message quotes an override, or names the key of one or a key that is known."""
    if any(repr(word) in message or (word and word in message) for word in words):
        return True
    keys = {word.partition("=")[0].strip(" +~") for word in words} | KNOWN
    return any(name in keys and ("." in name or repr(name) in message) for name in re.findall(r"[\w.]*\w", message))


def refusal(words: list[str]) -> str | None:
    """The message that refuses a command, or None where it is read whole."""
    try:
        config = load_config("ppo_trainer", words, conversions=OLD_CODE).config
    except (VerliftError, AlgorithmError) as error:
        return str(error)
    OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    return None


@pytest.mark.parametrize(
    "seeds",
    [
        range(0, 1000, 40),
        *(pytest.param(range(start, start + 50), marks=pytest.mark.evidence) for start in range(0, 1000, 50)),
    ],
    ids=str,
)
def test_a_mutated_command_is_read_or_refused_by_name(seeds):
    """Any other exception ends the test, with the seed in its note. All thousand are left to `make evidence`."""
    for seed in seeds:
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


@pytest.mark.evidence
@pytest.mark.ray
@pytest.mark.parametrize("name", ["grpo_qwen2_7b_0.3", "ppo_deepseek7b_0.4", "rloo_qwen2_7b_0.3"])
def test_an_old_script_trains(name, tmp_path):
    """The script itself, with its model, data and sizes swapped for small ones behind what it sets."""
    script = ["bash", str(LAUNCHES / f"{name}.sh"), *TINY, f"trainer.default_local_dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "verlift.main", "exec", "--", *script],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "step 1/1" in done.stdout
    assert "played by this build's own engine hf" in done.stderr
