"""Every key that verl has or had since 0.3.0, at its defaults and at another value: none is unknown or dropped."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from runtime.config import ConfigNote, load_config
from runtime.config.composing import main_config
from runtime.config.flat import raw_leaves, with_groups
from runtime.config.foreign import ForeignKeys
from runtime.config.tables import aliases, old_defaults, present_name, verl_defaults
from runtime.errors import ConfigError, VerliftError
from shared_algos.errors import AlgorithmError

HELD = raw_leaves(main_config())
KEYS = sorted(
    {*old_defaults(), *verl_defaults(), *HELD} | {old for old in aliases() if old not in with_groups(old_defaults())}
)


def changed(default: Any) -> Any:
    """Another value of the same type."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return default + 1
    return {list: ["other"], dict: {"other": 1}}.get(type(default), "other")


def default_of(key: str) -> Any:
    return old_defaults().get(key, HELD.get(key))


def outcome(key: str, value: Any) -> str:
    """What becomes of ``key=value``: the kind of its first note, refused, held by our configs, or silent."""
    if key in HELD:
        return "held"
    config, notes = OmegaConf.create(), list[ConfigNote]()
    OmegaConf.update(config, key, value, force_add=True)
    try:
        ForeignKeys(config, [], notes).settle()
    except ConfigError as error:
        text = str(error)
        assert "unknown config key" not in text, (key, value, text)
        assert key in text or str(present_name(key)) in text, (key, value, text)
        return "refused"
    told = notes[0].key if notes else key
    assert told.startswith((key, str(present_name(key)))), (key, notes)
    return notes[0].kind if notes else "silent"


def test_another_value_of_any_key_is_told_or_refused():
    outcomes = {key: outcome(key, changed(default_of(key))) for key in KEYS}
    assert len(outcomes) > 950
    assert [key for key, name in outcomes.items() if name == "silent"] == []
    assert set(outcomes.values()) == {"held", "moved", "converted", "inert", "free", "refused"}


@pytest.mark.parametrize("version", ["last", "0.9.0", "0.10.dev"])
def test_a_config_of_all_keys_at_their_defaults_is_refused_nowhere(version):
    """Interpolations among them resolve, since every key is there."""
    config, notes = OmegaConf.create(), list[ConfigNote]()
    for key, defaults in {**{old: (value,) for old, value in old_defaults().items()}, **verl_defaults()}.items():
        value = old_defaults()[key] if version == "last" else defaults[0 if version == "0.9.0" else -1]
        OmegaConf.update(config, key, value, force_add=True)
    ForeignKeys(config, [], notes).settle()
    assert {note.kind for note in notes} <= {"moved", "converted", "inert"}


@pytest.mark.parametrize("key", [key for key in KEYS if old_defaults().get(key) == "???"] + KEYS[::12])
def test_a_sample_of_all_keys_on_the_command_line(key):
    """Read as a command is: accepted with a note where we do not hold the key, or refused with its name."""
    value = changed(default_of(key))
    typed = {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else value
    text = f"++{key}={typed}".replace("'", "").replace("{other: 1}", "{other:1}")
    try:
        loaded = load_config("tiny", [text])
    except (VerliftError, AlgorithmError) as error:
        message = str(error)
        assert "unknown config key" not in message
        assert key.rpartition(".")[2] in message or str(present_name(key)).rpartition(".")[2] in message
    else:
        assert key in HELD or any(note.key.startswith(key) for note in loaded.notes)
