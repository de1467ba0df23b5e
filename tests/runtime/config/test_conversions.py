"""Values of older versions of verl: converted where their meaning is certain, refused with the way out elsewhere."""

import pytest
from omegaconf import DictConfig, OmegaConf

from runtime.algorithms import rollout_correction_config
from runtime.config import OLD_CODE, load_config, settle_config
from runtime.config.composing import CONFIG_DIR, compose_config
from runtime.config.conversions import CONVERSIONS, is_converted
from runtime.config.tables import old_defaults
from runtime.errors import ConfigError

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
CORRECTION, OLD = "algorithm.rollout_correction", "algorithm.rollout_is"


def converted(*overrides: str) -> tuple[dict[str, object], str]:
    """The config's rollout correction and the text of the conversion."""
    loaded = load_config("tiny", overrides)
    (note,) = [note for note in loaded.notes if note.kind == "converted"]
    return loaded.config.algorithm.rollout_correction, str(note)


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config("tiny", overrides)
    return str(caught.value)


@pytest.mark.parametrize("value", ["sync", "'sync'", "${data.mode_of_mine}"])
def test_the_synchronous_mode_is_the_asynchronous_one(value):
    loaded = load_config("tiny", [f"{ROLLOUT}.mode={value}", "+data.mode_of_mine=sync"])
    assert loaded.config.actor_rollout_ref.rollout.mode == "async"
    (note,) = [note for note in loaded.notes if note.kind == "converted"]
    assert "mode='sync' became" in note.message
    assert "mode='async'" in note.message


@pytest.mark.parametrize("role", [ACTOR, "critic"])
def test_what_a_checkpoint_holds_was_one_key(role):
    notes = load_config("tiny", [f"{role}.checkpoint.contents=[model,hf_model]"]).notes
    kinds = {note.key: note.kind for note in notes}
    assert kinds[f"{role}.checkpoint.contents"] == "converted"
    assert kinds[f"{role}.checkpoint.save_contents"] == "inert"
    load_config("tiny", [f"{role}.checkpoint.contents=null"])
    message = refused(f"{role}.checkpoint.contents=[model]", f"{role}.checkpoint.save_contents=[extra]")
    assert f"{role}.checkpoint.contents" in message
    assert "['extra']" in message


@pytest.mark.parametrize(("value", "loss"), [("true", "reinforce"), ("false", "ppo_clip"), ("null", "ppo_clip")])
def test_the_policy_gradient_is_a_loss_type(value, loss):
    settings, text = converted(f"{CORRECTION}.use_policy_gradient={value}", f"{CORRECTION}.bypass_mode=true")
    assert settings.loss_type == loss
    assert "use_policy_gradient=" in text
    assert "use_policy_gradient" not in settings
    assert f"{CORRECTION}.use_policy_gradient='x'" in refused(f"{CORRECTION}.use_policy_gradient=x")


@pytest.mark.parametrize(
    ("mode", "now"), [("token", "token_k1"), ("sequence", "seq_sum_k1"), ("geometric", "seq_mean_k1")]
)
def test_rejection_has_other_names_and_inverse_bounds(mode, now):
    bounds = [f"{CORRECTION}.rollout_rs_threshold=4.0", f"+{CORRECTION}.rollout_rs_threshold_lower=0.2"]
    settings, text = converted(f"{CORRECTION}.rollout_rs={mode}", *bounds)
    assert (settings.rollout_rs, settings.rollout_rs_threshold) == (now, "0.25_5.0")
    assert "rollout_rs_threshold=4.0" in text
    assert "rollout_rs_threshold='0.25_5.0'" in text


def test_the_lower_bound_of_rejection_was_the_reciprocal_of_the_upper():
    settings, _ = converted(f"{CORRECTION}.rollout_rs=token", f"{CORRECTION}.rollout_rs_threshold=2")
    assert settings.rollout_rs_threshold == "0.5_2.0"


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{CORRECTION}.rollout_rs=token"],
        [f"{CORRECTION}.rollout_rs=token", f"{CORRECTION}.rollout_rs_threshold=0.5_2"],
        [f"{CORRECTION}.rollout_rs=token", f"{CORRECTION}.rollout_rs_threshold=0"],
        [f"{CORRECTION}.rollout_rs=token", f"{CORRECTION}.rollout_rs_threshold=inf"],
        [f"{CORRECTION}.rollout_rs=token_k1", f"{CORRECTION}.rollout_rs_threshold_lower=0.5"],
        [f"{CORRECTION}.rollout_rs=[token]"],
        [f"{OLD}=true"],
        [f"{OLD}=true", f"{OLD}_threshold=2", f"{OLD}_mode=mask"],
        [f"{OLD}=true", f"{OLD}_threshold=2", f"{OLD}_level=geometric"],
        [f"{OLD}=true", f"{OLD}_threshold=2", f"{OLD}_threshold_lower=0.5"],
        [f"{OLD}=true", f"{OLD}_threshold=2", f"{OLD}_veto_threshold=0.01"],
        [f"{OLD}_threshold=2"],
    ],
)
def test_what_is_not_certain_is_refused_with_the_present_key(overrides):
    assert CORRECTION in refused(*overrides)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_truncated_weights_moved(level):
    settings, text = converted(
        f"{OLD}=true", f"{OLD}_threshold=3.0", f"{OLD}_level={level}", f"{OLD}_veto_threshold=1e-4"
    )
    assert (settings.rollout_is, settings.rollout_is_threshold) == (level, 3.0)
    assert "not vetoed" in text


def test_a_config_that_was_settled_is_settled_to_the_same_again():
    """A recipe's config is settled by its entry point and by its trainer, old keys kept beside the present ones."""
    composed = compose_config("tiny", CONFIG_DIR)
    OmegaConf.set_struct(composed, False)
    given = {"rollout_rs": "token", "rollout_rs_threshold": 4.0, "rollout_rs_threshold_lower": 0.2}
    for key, value in {**given, "use_policy_gradient": True, "bypass_mode": True}.items():
        OmegaConf.update(composed, f"{CORRECTION}.{key}", value, force_add=True)
    OmegaConf.update(composed, f"{ACTOR}.checkpoint.contents", ["model"], force_add=True)
    OmegaConf.update(composed, f"{ROLLOUT}.mode", "sync")
    old = {f"{ROLLOUT}.name": "vllm", f"{ACTOR}.ulysses_sequence_parallel_size": 2, "critic.ppo_micro_batch_size": 4}
    for key, value in old.items():
        OmegaConf.update(composed, key, value, force_add=True)
    once = settle_config(composed, use_v1=True)
    twice = settle_config(once, use_v1=True)
    assert once == twice
    assert rollout_correction_config(twice).rollout_rs_threshold == "0.25_5.0"
    assert twice.actor_rollout_ref.rollout.mode == "async"


def test_validation_at_temperature_0_is_greedy():
    """vLLM decodes greedily at temperature 0 whatever do_sample says; 0 is verl's default."""
    sampled = [f"{ROLLOUT}.val_kwargs.do_sample=true"]
    loaded = load_config("tiny", sampled)
    assert loaded.config.actor_rollout_ref.rollout.val_kwargs.do_sample is False
    assert [(note.key, note.kind) for note in loaded.notes] == [(f"{ROLLOUT}.val_kwargs.do_sample", "warning")]
    warm = load_config("tiny", [*sampled, f"{ROLLOUT}.val_kwargs.temperature=0.6"])
    assert warm.config.actor_rollout_ref.rollout.val_kwargs.do_sample is True
    assert warm.notes == ()


def of_old_code(*overrides: str) -> tuple[DictConfig, dict[str, tuple[str, str]]]:
    """The config of a command that was written for verl, and its notes by key."""
    loaded = load_config("tiny", overrides, conversions=OLD_CODE)
    return loaded.config, {note.key: (note.kind, note.message) for note in loaded.notes}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_other_engines_are_played_by_ours_where_old_code_runs(engine):
    config, notes = of_old_code(f"{ROLLOUT}.name={engine}", f"{ROLLOUT}.top_k=0")
    assert (config.actor_rollout_ref.rollout.name, config.actor_rollout_ref.rollout.top_k) == ("hf", -1)
    kind, message = notes[f"{ROLLOUT}.name"]
    assert kind == "converted"
    assert f"'{engine}' became {ROLLOUT}.name='hf'" in message
    assert "the same distribution, not the same tokens" in message
    assert "is not built" in refused(f"{ROLLOUT}.name={engine}")


def test_micro_batches_counted_over_all_ranks_are_cut_up():
    sizes = [f"{ACTOR}.ppo_micro_batch_size=8", "critic.ppo_micro_batch_size=1", "trainer.n_gpus_per_node=2"]
    config, notes = of_old_code(*sizes, "critic.ppo_micro_batch_size_per_gpu=null")
    assert config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 4
    assert config.critic.ppo_micro_batch_size_per_gpu == 1
    assert notes[f"{ACTOR}.ppo_micro_batch_size"][0] == "converted"
    assert "trainer" not in notes[f"{ACTOR}.ppo_micro_batch_size"][1]
    with pytest.raises(ConfigError, match="it counts over all ranks"):
        of_old_code(f"{ACTOR}.ppo_micro_batch_size=abc")


def test_ranks_that_shared_a_sequence_pool_their_token_budgets():
    """The reference and the old log-probs follow the actor, as in verl, unless they say otherwise."""
    given = ["ulysses_sequence_parallel_size=2", "ppo_max_token_len_per_gpu=100", "use_dynamic_bsz=true"]
    config, notes = of_old_code(*(f"{ACTOR}.{text}" for text in given), "critic.ulysses_sequence_parallel_size=4")
    assert config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 200
    assert config.actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu == 200
    assert config.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu == 200
    assert config.critic.ppo_max_token_len_per_gpu == 4 * 32768
    assert notes[f"{ACTOR}.ulysses_sequence_parallel_size"][0] == "converted"
    own, _ = of_old_code(
        *(f"{ACTOR}.{text}" for text in given), "actor_rollout_ref.ref.ulysses_sequence_parallel_size=1"
    )
    assert own.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu == 100
    assert "sequence parallelism is not built" in refused(f"{ACTOR}.ulysses_sequence_parallel_size=2")


def test_every_conversion_reads_keys_that_verl_had():
    for conversion in OLD_CODE:
        assert {*conversion.keys, *conversion.beside} <= set(old_defaults())
    for conversion in CONVERSIONS:
        assert all(is_converted(key) for key in conversion.keys)
    assert not is_converted("data.train_batch_size")
