"""What the README and the guides tell people to type is composed, and what they show as output is what comes out."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from runtime.config import load_config
from shared_algos.advantages import ADVANTAGES
from shared_algos.policy_losses import POLICY_LOSSES
from verlift import data
from verlift.main import main

HOUSE = Path(__file__).resolve().parents[2]
GUIDES = ("README.md", "docs/config.md", "docs/data.md", "docs/custom-functions.md")


def blocks(guide: str) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```", (HOUSE / guide).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


BLOCKS = [block for guide in GUIDES for block in blocks(guide)]
SHOWN = [block for block in BLOCKS if block.startswith("$ ")]
TYPED = [
    shlex.split(line, comments=True)[1:]
    for block in BLOCKS
    for line in block.replace("\\\n", "").splitlines()
    if line.startswith("verlift ")
]


def sessions() -> list[tuple[str, str]]:
    """Each command after a ``$`` with the output below it."""
    parts = [part for block in SHOWN for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part]
    return [tuple(re.split(r"(?<!\\)\n", part, maxsplit=1)) for part in parts]  # type: ignore[misc]


@pytest.fixture(autouse=True)
def registries(monkeypatch):
    """What the files of a guide register is gone after the test."""
    for registry in (ADVANTAGES, POLICY_LOSSES):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A working directory with the files that the guides show: blocks that open with their name in a comment."""
    for block in BLOCKS:
        if name := re.match(r"# (\S+\.(?:py|yaml))\n", block):
            path = tmp_path / name[1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(block, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def option(arguments: list[str], name: str) -> str | None:
    return arguments[arguments.index(name) + 1] if name in arguments else None


@pytest.mark.parametrize(
    "arguments",
    [line for line in TYPED if line[0] == "train" or line[:2] in (["parity", "run"], ["parity", "record"])],
    ids=" ".join,
)
def test_a_command_is_composed_as_typed(arguments, files):
    name, path = option(arguments, "--config-name"), option(arguments, "--config-path")
    if path is not None and not (files / path).exists():
        path = HOUSE / path  # commands of the README are typed there
    assert name is not None, "the defaults are for eight devices"
    overrides = [word for word in arguments if word.startswith(("+", "~")) or "=" in word]
    config = load_config(name, overrides, path).config
    assert config.trainer.nnodes * config.trainer.n_gpus_per_node <= 2
    assert config.actor_rollout_ref.model.path in ("tiny://model?seed=0", "models/smollm2")


@pytest.mark.parametrize("arguments", [line for line in TYPED if line[0] == "data"], ids=" ".join)
def test_a_data_command_has_the_options_that_are_typed(arguments):
    _, name, *options = arguments
    command = typer.main.get_command(data.app).commands[name]
    out = command.make_context(name, options).params["out"]
    assert str(out) != "data/chain_sum/train.parquet", "that file is the demo's"


@pytest.mark.parametrize(("command", "output"), sessions())
def test_what_is_shown_is_what_comes_out(command, output, files, capfd, monkeypatch):
    monkeypatch.setenv("VERLIFT_DEBUG", "0")
    with pytest.raises(SystemExit) as caught:
        main(shlex.split(command.replace("\\\n", ""))[1:])
    assert caught.value.code == 2
    assert capfd.readouterr().err.replace(str(files), "DIR") == output


def test_the_guides_are_seen():
    assert len(TYPED) >= 10
    assert len(sessions()) >= 5
