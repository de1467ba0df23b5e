"""Config groups as verl's dataclasses; ``tests/oracle`` compares fields and defaults with verl's."""

import pickle
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import pytest
from omegaconf import OmegaConf

from compat.algorithms.configs import ConfigView
from compat.configs.classes import MADE
from compat.configs.convert import omega_conf_to_dataclass, update_dict_with_config
from compat.configs.groups import MISSING
from compat.configs.presets import PRESETS
from compat.ppo.core_algos import compute_policy_loss_vanilla
from compat.ppo.errors import BadSettingError
from compat.utils.base_config import BaseConfig
from compat.utils.config import validate_config
from runtime.config import load_config
from runtime.errors import BatchSizeError
from shared_algos.rollout_correction import RolloutCorrectionConfig

Algo, Actor, Critic, Engine = (
    MADE[name] for name in ("AlgoConfig", "FSDPActorConfig", "FSDPCriticConfig", "FSDPEngineConfig")
)


@pytest.fixture(scope="module")
def config():
    return load_config("tiny", ["+actor_rollout_ref.actor.policy_loss.of_a_recipe=7"]).config


def test_a_dataclass_reads_like_a_dictionary():
    algorithm = Algo(gamma=0.9)
    assert isinstance(algorithm, BaseConfig)
    assert (algorithm.gamma, algorithm["gamma"], algorithm.get("gamma")) == (0.9, 0.9, 0.9)
    assert algorithm.get("nothing", 3) == 3
    assert "lam" in algorithm
    assert "nothing" not in algorithm
    assert {"gamma", "lam", "kl_ctrl"} < set(algorithm)
    assert len(algorithm) == len(list(algorithm))
    assert dict(**algorithm)["lam"] == 1.0
    assert algorithm.kl_ctrl.type == "fixed"


def test_fields_are_set_once_unless_they_are_mutable():
    actor = Actor(rollout_n=2)
    with pytest.raises(FrozenInstanceError, match="clip_ratio"):
        actor.clip_ratio = 0.3
    actor.ppo_mini_batch_size = 8
    assert actor.ppo_mini_batch_size == 8
    assert Actor(rollout_n=2).ppo_mini_batch_size != 8
    assert Actor(rollout_n=2).optim is not Actor(rollout_n=2).optim


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("algorithm", "AlgoConfig"),
        ("algorithm.kl_ctrl", "KLControlConfig"),
        ("actor_rollout_ref.actor", "FSDPActorConfig"),
        ("actor_rollout_ref.actor.optim", "FSDPOptimizerConfig"),
        ("actor_rollout_ref.rollout", "RolloutConfig"),
        ("critic", "FSDPCriticConfig"),
    ],
)
def test_a_group_is_what_its_place_in_the_config_says(config, group, name):
    group = OmegaConf.select(config, group)
    made = omega_conf_to_dataclass(group)
    assert type(made) is MADE[name]
    assert set(group) <= set(made), "no key is lost"
    for key in group:
        if not OmegaConf.is_config(group[key]):
            assert made[key] == group[key]
    assert type(omega_conf_to_dataclass(pickle.loads(pickle.dumps(group)))) is MADE[name]


def test_keys_of_a_recipe_stay_and_objects_travel(config):
    actor = pickle.loads(pickle.dumps(omega_conf_to_dataclass(config.actor_rollout_ref.actor)))
    assert actor.policy_loss.of_a_recipe == 7
    assert "of_a_recipe" in actor.policy_loss
    assert actor.engine is actor.fsdp_config
    assert ConfigView(actor).policy_loss.of_a_recipe == 7


def test_a_class_may_be_named_or_given():
    settings = {"_target_": "verl.trainer.config.AlgoConfig", "lam": 0.5, "kl_ctrl": {"kl_coef": 0.2}}
    algorithm = omega_conf_to_dataclass(OmegaConf.create(settings))
    assert type(algorithm) is Algo
    assert (algorithm.lam, algorithm.kl_ctrl.kl_coef) == (0.5, 0.2)
    assert omega_conf_to_dataclass({"fsdp_size": 2}, Engine).fsdp_size == 2
    assert omega_conf_to_dataclass({"_target_": "fractions.Fraction", "numerator": 3}) == 3
    assert omega_conf_to_dataclass(None) is None
    assert omega_conf_to_dataclass({}, Engine) == Engine()
    assert omega_conf_to_dataclass(algorithm) is algorithm
    with pytest.raises(AssertionError, match="no _target_"):
        omega_conf_to_dataclass({"a": 1})
    with pytest.raises(ValueError, match="no dataclass"):
        omega_conf_to_dataclass({"a": 1}, dict)


@dataclass
class OfARecipe(Actor):
    """A recipe's own subclass, as ``@dataclass class MyActorConfig(FSDPActorConfig)``."""

    temperature_decay: float = 0.5
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Plain:
    """A recipe's dataclass that is none of verl's."""

    rate: float = 0.0


def test_classes_of_a_recipe(config):
    made = omega_conf_to_dataclass(config.actor_rollout_ref.actor, OfARecipe)
    assert type(made) is OfARecipe
    assert (made.temperature_decay, made.optim.lr) == (0.5, config.actor_rollout_ref.actor.optim.lr)
    assert omega_conf_to_dataclass({"rate": 2.0}, Plain) == Plain(2.0)
    with pytest.raises(BadSettingError, match=r"no \['rat'\]; it has \['rate'\]"):
        omega_conf_to_dataclass({"rat": 2.0}, Plain)


def test_what_cannot_be_is_refused():
    with pytest.raises(AssertionError, match=r"actor\.strategy must be given"):
        MADE["ActorConfig"]()
    with pytest.raises(ValueError, match="unknown loss_agg_mode 'mean'"):
        Actor(loss_agg_mode="mean")
    for made, role in ((Actor(ppo_mini_batch_size=8), "actor"), (Critic(ppo_mini_batch_size=8), "critic")):
        made.validate(1, 8)
        with pytest.raises(ValueError, match=rf"{role}\.ppo_mini_batch_size=8.*data\.train_batch_size=4"):
            made.validate(1, 4)


def test_older_names_of_the_optimizers_keys_are_taken_over():
    optimizer = MADE["FSDPOptimizerConfig"](grad_clip=0.5, warmup_style="cosine")
    assert (optimizer.clip_grad, optimizer.lr_scheduler_type) == (0.5, "cosine")


@pytest.mark.parametrize("name", [*PRESETS, "decoupled_token_icepop", "bypass_pg_token_icepop"])
def test_every_preset_is_a_correction_that_the_core_takes(name):
    preset = getattr(MADE["RolloutCorrectionConfig"], name)()
    settings = {key: preset[key] for key in preset if key != "_target_"}
    core = RolloutCorrectionConfig(**settings)
    assert core.bypass_mode == name.startswith("bypass")
    assert bool(core.rules) == ("_rs" in name)
    given = MADE["RolloutCorrectionConfig"].bypass_pg_geo_rs_token_tis(3.0, rs_threshold="0.5_2.0")
    assert (given.rollout_is_threshold, given.rollout_rs_threshold) == (3.0, "0.5_2.0")


def test_a_model_brings_its_tokenizer_and_config(config):
    folder = config.actor_rollout_ref.model.path
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    assert (model.path, model.tokenizer_path) == (folder, folder)
    assert model.tokenizer.encode("7")
    assert model.hf_config.vocab_size >= len(model.tokenizer)
    assert model.get_processor() is model.tokenizer
    assert MADE["HFModelConfig"]().path == MISSING


def test_losses_read_an_actors_dataclass():
    import torch

    old, new, ones = torch.zeros(1, 2), torch.tensor([[0.5, 0.0]]), torch.ones(1, 2)
    loss, _ = compute_policy_loss_vanilla(old, new, ones, ones, "token-mean", Actor(clip_ratio_high=0.3, rollout_n=1))
    assert float(loss) == pytest.approx(-(1.3 + 1) / 2)


def test_values_of_a_config_by_name():
    values = {"lam": 0, "other": 1}
    update_dict_with_config(values, OmegaConf.create({"lam": 0.5}))
    assert values == {"lam": 0.5, "other": 1}


def test_validation_raises_what_verl_raises(config):
    good = OmegaConf.to_container(config)
    validate_config(OmegaConf.create(good), use_reference_policy=False, use_critic=False)
    bad = OmegaConf.create(good)
    bad.actor_rollout_ref.actor.ppo_mini_batch_size = 3
    for kind in (AssertionError, ValueError, BatchSizeError):
        with pytest.raises(kind, match=r"data\.train_batch_size = \d+ does not divide by .*ppo_mini_batch_size = 3"):
            validate_config(bad, False, False)
    bad.actor_rollout_ref.actor.ppo_mini_batch_size = config.actor_rollout_ref.actor.ppo_mini_batch_size
    bad.actor_rollout_ref.actor.clip_ratio_c = 0.5
    with pytest.raises(AssertionError, match=r"clip_ratio_c=0\.5"):
        validate_config(bad, False, False)
