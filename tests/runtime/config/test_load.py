"""load_config: every key is consumed, moved, reported or refused."""

import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import ReadonlyConfigError

from runtime.config import format_notes, load_config
from runtime.config.composing import main_config
from runtime.config.flat import raw_leaves
from runtime.config.tables import verl_defaults
from runtime.errors import ConfigError


def notes_of(*overrides: str, config: str = "tiny") -> dict[str, tuple[str, str]]:
    return {note.key: (note.kind, note.message) for note in load_config(config, overrides).notes}


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config("tiny", overrides)
    assert len(caught.value.args) == 1
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["ppo_trainer", "tiny", "smollm2"])
@pytest.mark.parametrize("use_v1", ["true", "false"])
def test_our_configs_load(name, use_v1):
    config = load_config(name, [f"trainer.use_v1={use_v1}"]).config
    assert config.trainer.use_v1 is (use_v1 == "true")
    OmegaConf.to_container(config, resolve=True, throw_on_missing=True)


@pytest.mark.parametrize("name", ["tiny", "smollm2"])
def test_the_small_configs_have_nothing_to_report(name):
    assert load_config(name).notes == ()


def test_the_config_is_read_only_closed_and_picklable():
    config = load_config("tiny").config
    with pytest.raises(ReadonlyConfigError):
        config.data.train_batch_size = 1
    with pytest.raises(AttributeError):
        _ = config.data.no_such_key
    assert pickle.loads(pickle.dumps(config)) == config


def test_values_follow_the_keys_they_refer_to():
    config = load_config("tiny", ["data.max_response_length=7", "actor_rollout_ref.actor.ppo_epochs=3"]).config
    assert config.actor_rollout_ref.rollout.response_length == 7
    assert config.critic.ppo_epochs == 3


@pytest.mark.parametrize(
    ("override", "names"), [("trainer.logger=console", ["console"]), ("trainer.logger=[jsonl]", ["jsonl"])]
)
def test_loggers_are_a_list_however_written(override, names):
    assert load_config("tiny", [override]).config.trainer.logger == names


def test_the_data_seed_is_the_runs_unless_it_is_set():
    assert load_config("tiny").config.data.seed == 42
    assert load_config("tiny", ["runtime.seed=7"]).config.data.seed == 7
    assert load_config("tiny", ["runtime.seed=7", "data.seed=0"]).config.data.seed == 0


# Overrides.


def test_override_grammar():
    overrides = [
        "data.train_batch_size=16",
        "+data.mine=[1,2]",
        "++trainer.nnodes=2",
        "++trainer.other=x",
        "~trainer.logger",
    ]
    loaded = load_config("tiny", overrides)
    assert loaded.config.data.train_batch_size == 16
    assert loaded.config.data.mine == [1, 2]
    assert loaded.config.trainer.nnodes == 2
    assert loaded.config.trainer.other == "x"
    assert loaded.config.trainer.logger == ["console", "jsonl"]
    kinds = {note.key: note.kind for note in loaded.notes}
    assert kinds == {"data.mine": "free", "trainer.other": "free", "trainer.logger": "default"}


def test_a_group_of_keys_can_be_set_at_once():
    config = load_config("tiny", ["data={train_batch_size: 16}"]).config
    assert (config.data.train_batch_size, config.data.max_prompt_length) == (16, 32)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("a=1,2", "several values"),
        ("no_equals_sign", "cannot read the override 'no_equals_sign'"),
        ("==", "cannot read the override '=='"),
        ("trainer=5", "sets the whole group 'trainer'"),
        ("model_engine=megatron", "'model_engine/megatron'"),
        ("data.train_batch_size={a: 1}", "data.train_batch_size"),
        ("trainer.v1=3", "'trainer.v1' is a group of keys"),
        ("~no.such.key", "there is no config key 'no.such.key' to delete"),
        ("data.train_files='${nowhere}'", "'data.train_files' cannot be read"),
        ("+own=???", "'+own=???' gives its key no value"),
        (
            "reward_model.overlong_buffer.penalty_factor=${hydra:job.name}",
            "(set by 'reward_model.overlong_buffer.penalty_factor=${hydra:job.name}') cannot be read",
        ),
    ],
)
def test_an_override_that_cannot_apply_is_quoted(override, words):
    assert words in refused(override)


def test_hydra_settings_are_reported():
    assert notes_of("hydra.run.dir=x")["hydra.run.dir"][0] == "inert"


# Unknown keys.


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("actor_rollout_ref.actor.entropy_coef", "actor_rollout_ref.actor.entropy_coeff"),
        ("train_batch_size", "data.train_batch_size"),
        ("actor_rollout_ref.actor.lr", "actor_rollout_ref.actor.optim.lr"),
        ("trainer.total_training_step", "trainer.total_training_steps"),
        ("actor_rollout_ref.rollout.gpu_memory_utilisation", "actor_rollout_ref.rollout.gpu_memory_utilization"),
        ("reward_model.reward_managr", "reward_model.reward_manager"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(wrong, right):
    message = refused(f"{wrong}=1")
    assert f"unknown config key {wrong!r}" in message
    assert f"nearest known key is {right!r}" in message


def test_an_added_key_that_looks_like_a_slip_gets_a_hint():
    kind, message = notes_of("+actor_rollout_ref.actor.entropy_coef=0.1")["actor_rollout_ref.actor.entropy_coef"]
    assert kind == "free"
    assert "did you mean actor_rollout_ref.actor.entropy_coeff?" in message


HELD = sorted(raw_leaves(main_config()))
LETTERS = st.sampled_from("abcxyz_.0")


@st.composite
def mutated_key(draw: st.DrawFn) -> str:
    key = draw(st.sampled_from(HELD))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(key) - 1))
        change = draw(st.sampled_from(("delete", "insert", "replace", "swap")))
        middle = {
            "delete": "",
            "insert": draw(LETTERS) + key[place],
            "replace": draw(LETTERS),
            "swap": key[place : place + 2][::-1],
        }[change]
        key = key[:place] + middle + key[place + (2 if change == "swap" else 1) :]
        if not key:
            key = "x"
    return key


@given(mutated_key())
@settings(max_examples=40, deadline=None)
def test_a_mistyped_key_is_named_or_means_something(key):
    """Only ConfigError comes out, it names what was typed, and a mutated key never passes as if it had an effect."""
    try:
        loaded = load_config("tiny", [f"{key}=1"])
    except ConfigError as error:
        assert key in str(error) or f"{key}=1" in str(error)  # noqa: PT017
    else:
        reported = {note.key for note in loaded.notes}
        assert key in HELD or any(name == key or name.startswith(f"{key}.") for name in reported)


# Keys that are known but not read.


def test_an_inert_key_is_accepted_and_reported():
    kind, message = notes_of("actor_rollout_ref.rollout.gpu_memory_utilization=0.4")[
        "actor_rollout_ref.rollout.gpu_memory_utilization"
    ]
    assert kind == "inert"
    assert "no memory pool" in message


def test_an_unsupported_key_is_refused_when_it_asks_for_something():
    assert "LoRA is not built yet" in refused("actor_rollout_ref.model.lora_rank=8")
    assert notes_of("actor_rollout_ref.model.lora_rank=0")["actor_rollout_ref.model.lora_rank"][0] == "inert"


def test_a_default_that_is_an_interpolation_may_be_written_out():
    load_config("tiny", ["actor_rollout_ref.ref.ulysses_sequence_parallel_size=1"])
    assert "sequence parallelism" in refused("actor_rollout_ref.ref.ulysses_sequence_parallel_size=2")


def test_deleting_a_key_that_we_do_not_hold_is_reported():
    key = "actor_rollout_ref.rollout.gpu_memory_utilization"
    assert notes_of(f"~{key}")[key][0] == "inert"


def test_free_form_groups_are_passed_on_and_reported():
    loaded = load_config("tiny", ["+ray_kwargs.ray_init.address=auto", "actor_rollout_ref.rollout.engine_kwargs.x.y=1"])
    assert loaded.config.ray_kwargs.ray_init.address == "auto"
    assert loaded.config.actor_rollout_ref.rollout.engine_kwargs.x.y == 1
    assert {note.kind for note in loaded.notes} == {"free"}


# Old names.


def test_the_old_reward_groups_are_mapped():
    """FACTS section 1, case 3: verl composes this and trains on another reward."""
    overrides = ["custom_reward_function.path=R.py", "reward_model.reward_manager=naive"]
    loaded = load_config("tiny", overrides)
    assert loaded.config.reward.custom_reward_function.path == "R.py"
    assert loaded.config.reward.reward_manager.name == "naive"
    assert "custom_reward_function" not in loaded.config
    assert "reward_model" not in loaded.config
    assert {note.key: note.kind for note in loaded.notes} == {
        "custom_reward_function.path": "moved",
        "reward_model.reward_manager": "moved",
    }


def test_old_free_form_reward_arguments_are_mapped():
    overrides = ["+reward_model.reward_kwargs.overlong_buffer_cfg.len=8", "+custom_reward_function.reward_kwargs.a=1"]
    config = load_config("tiny", overrides).config
    assert config.reward.reward_kwargs.overlong_buffer_cfg.len == 8
    assert config.reward.custom_reward_function.reward_kwargs.a == 1


def test_an_old_name_is_judged_by_what_it_means_now():
    assert "reward.reward_model.enable=True is not supported" in refused("reward_model.enable=True")
    load_config("tiny", ["reward_model.enable=False"])


def test_an_old_and_a_present_name_that_disagree_are_refused():
    message = refused("custom_reward_function.path=A.py", "reward.custom_reward_function.path=B.py")
    assert "'A.py'" in message
    assert "'B.py'" in message


# A config of the user's.


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_a_config_of_the_users_builds_on_ours(tmp_path):
    folder = write(tmp_path, "defaults: [tiny, _self_]\ndata: {train_batch_size: 16}\n")
    for name in ("mine", "mine.yaml"):
        assert load_config(name, (), folder).config.data.train_batch_size == 16


@pytest.mark.parametrize("place", ["file://verl/trainer/config", "pkg://verl.trainer.config"])
def test_a_recipe_that_looks_for_verls_configs_finds_ours(tmp_path, place):
    text = f"hydra: {{searchpath: ['{place}']}}\ndefaults: [ppo_trainer, _self_]\ndata: {{train_batch_size: 512}}\n"
    assert load_config("mine", (), write(tmp_path, text)).config.data.train_batch_size == 512


def test_an_unknown_key_in_a_file_is_refused_with_the_nearest(tmp_path):
    folder = write(tmp_path, "defaults: [tiny, _self_]\ntrainer: {total_epoch: 3}\n")
    with pytest.raises(ConfigError, match=r"'trainer.total_epoch'; the nearest known key is 'trainer.total_epochs'"):
        load_config("mine", (), folder)


def test_old_names_in_a_file_are_mapped(tmp_path):
    text = "defaults: [tiny, _self_]\nreward_model: {reward_manager: naive, num_workers: null}\n"
    loaded = load_config("mine", (), write(tmp_path, text))
    assert loaded.config.reward.reward_manager.name == "naive"
    assert [note.key for note in loaded.notes] == ["reward_model.reward_manager"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("a: [1", "cannot be composed"), ("defaults: [nowhere]\n", "nowhere"), ("trainer: 3\n", "trainer")],
)
def test_a_broken_file_is_one_message(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words) as caught:
        load_config("mine", (), write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_missing_config_or_folder_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no config 'nope'.*there is ppo_trainer, smollm2, tiny"):
        load_config("nope")
    with pytest.raises(ConfigError, match="there is no folder"):
        load_config("nope", (), tmp_path / "absent")


@pytest.mark.parametrize("version", [0, -1])
def test_a_dump_of_all_of_verls_keys_is_read(tmp_path, version):
    """Every key of verl at its default, as its generated reference config has them: nothing is unknown or refused."""
    dump = OmegaConf.create()
    for key, defaults in verl_defaults().items():
        OmegaConf.update(dump, key, defaults[version], force_add=True)
    OmegaConf.update(dump, "actor_rollout_ref.rollout.name", "hf")
    OmegaConf.update(dump, "actor_rollout_ref.actor._target_", "verl.workers.config.FSDPActorConfig", force_add=True)
    loaded = load_config("mine", (), write(tmp_path, OmegaConf.to_yaml(dump)))
    assert loaded.config.trainer.n_gpus_per_node == 8
    assert [note.key for note in loaded.notes if note.kind == "inert"] == ["actor_rollout_ref.actor._target_"]


def test_notes_that_say_the_same_share_a_line():
    prefix = "actor_rollout_ref.rollout"
    text = format_notes(
        load_config("tiny", [f"{prefix}.enforce_eager=true", f"{prefix}.gpu_memory_utilization=0.4"]).notes
    )
    assert text.count("\n") == 0
    assert "enforce_eager" in text
    assert "gpu_memory_utilization" in text
