"""The tables in configs/ cover verl: no key of 0.9.0 or 0.10.dev is one nobody speaks of."""

import re

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from runtime.config.flat import raw_leaves
from runtime.config.foreign import is_known
from runtime.config.tables import CONFIG_DIR, aliases, known_key, known_keys, present_name, verl_defaults

OURS = {
    "algorithm.gdpo_reward_keys",
    "algorithm.gdpo_reward_weights",
    "actor_rollout_ref.rollout.deterministic",
    "data.sampler.class_path",
    "data.sampler.class_name",
    "reward.reward_kwargs",
    "reward.custom_reward_function.reward_kwargs",
    "runtime.seed",
    "runtime.torch_threads",
    "runtime.num_cpus",
    "runtime.schedule_timeout_s",
    "runtime.rollout_timeout_s",
    "runtime.import_modules",
}
"""Held keys that verl's table has not: our own, and keys that verl leaves out of its YAML or fills."""

DEVIATIONS = {
    "actor_rollout_ref.rollout.name",
    "trainer.device",
    "trainer.logger",
    "ray_kwargs.ray_init.num_cpus",
    "critic.ppo_micro_batch_size_per_gpu",
}
"""Held keys whose default is not verl's; each has a comment in its file that says so or why."""


def held_keys() -> dict[str, object]:
    with initialize_config_dir(str(CONFIG_DIR), version_base=None):
        return raw_leaves(compose("ppo_trainer"))


def test_the_table_holds_both_versions_of_verl():
    defaults = verl_defaults()
    assert len(defaults) == 828
    assert defaults["algorithm.adv_estimator"] == ("gae", "gae")
    assert len(defaults["global_profiler.relocate_results"]) == 1  # 0.10.dev only
    assert len(defaults["data.continuous_token.enable"]) == 1  # 0.9.0 only


def test_every_verl_key_is_held_known_or_renamed():
    held = held_keys()
    unspoken = [
        key for key in verl_defaults() if key not in held and known_key(key) is None and present_name(key) is None
    ]
    assert unspoken == []


def test_held_defaults_are_verls_unless_listed():
    held = held_keys()
    assert set(held) - set(verl_defaults()) == OURS
    differing = {key for key, value in held.items() if key not in OURS and value not in verl_defaults()[key]}
    assert differing == DEVIATIONS


def test_every_row_of_known_keys_is_whole_and_unlike_the_others():
    rows = known_keys()
    assert {row.status for row in rows} == {"inert", "unsupported", "free"}
    assert all(len(row.reason) > 15 for row in rows)
    assert len({row.pattern for row in rows}) == len(rows)


def test_an_exact_row_goes_before_a_pattern():
    assert known_key("reward.reward_model.enable").status == "unsupported"
    assert known_key("reward.reward_model.nnodes").status == "inert"


def test_every_alias_leads_to_a_key_that_is_known():
    held = held_keys()
    for old, new in aliases().items():
        assert new in held or is_known(new) or any(key.startswith(f"{new}.") for key in held), (old, new)
        assert old not in held


def test_every_held_key_has_a_comment_above_it_or_its_neighbours():
    """A key may share the comment of the lines right above it, but no block of keys goes without one."""
    for path in CONFIG_DIR.glob("*/*.yaml"):
        blocks = path.read_text(encoding="utf-8").split("\n\n")
        bare = [block for block in blocks if ":" in block and "#" not in block and "defaults:" not in block]
        allowed = {"loss_agg_mode", "checkpoint", "strategy", "policy_loss"}  # explained at the actor's keys
        assert [block for block in bare if block.strip().split(":")[0] not in allowed] == [], path


def test_verl_yaml_files_of_a_group_resolve():
    with initialize_config_dir(str(CONFIG_DIR), version_base=None):
        for name in ("ppo_trainer", "tiny", "smollm2"):
            OmegaConf.to_container(compose(name), resolve=True, throw_on_missing=True)


PASSED_ON_WHOLE = {"transfer_queue.backend", "algorithm.rollout_correction"}
"""Groups that are handed on as they are, to a library or to a dataclass of the same fields."""

CHECKED_ONLY = {"trainer.v1.trainer_mode"}
"""Keys with one value that is built: reading the config refuses any other."""


def test_every_held_key_is_read_by_the_trainers():
    """A held key that nothing reads would be accepted and have no effect, in silence."""
    folders = ("runtime", "legacy", "v1", "compat")
    files = [path for folder in folders for path in (CONFIG_DIR.parent / folder).rglob("*.py")]
    # What runtime/config checks is not yet read; roles.py answers the trainers' questions.
    readers = [path for path in files if path.parent.name != "config" or path.name == "roles.py"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in readers)
    names = set(re.findall(r"\w+", text))
    unread = {key for key in held_keys() if key.rpartition(".")[2] not in names} - CHECKED_ONLY
    assert {key for key in unread if not any(key.startswith(f"{group}.") for group in PASSED_ON_WHOLE)} == set()
