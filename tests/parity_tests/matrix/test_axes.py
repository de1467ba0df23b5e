"""The rules of the matrix are the refusals of the config, no more and no fewer."""

from __future__ import annotations

import json

import pytest
from omegaconf import OmegaConf

from parity_tests.matrix.axes import AXES, BASE, RULES, config_of, derived, fits
from parity_tests.matrix.cells import pruned_cells
from runtime.config import load_config
from runtime.errors import ConfigError
from shared_algos.advantages import ADVANTAGES
from shared_algos.policy_losses import POLICY_LOSSES

CONFIG_RULES = [rule for rule in RULES if rule.stage == "config"]


def test_every_registered_name_is_on_an_axis():
    assert set(AXES["estimator"]) == set(ADVANTAGES.names())
    assert set(AXES["loss"]) == set(POLICY_LOSSES.names())


@pytest.mark.parametrize("rule", CONFIG_RULES, ids=lambda rule: "+".join(rule.when.values()))
def test_a_rule_quotes_what_the_config_says(rule):
    with pytest.raises(ConfigError, match=rule.refusal):
        config_of(rule.when)


def test_cells_that_no_rule_refuses_can_be_read():
    cells = [cell for cell in pruned_cells() if fits(cell)][::4]
    assert all(config_of(cell) for cell in cells)


def test_a_derived_config_is_the_one_that_is_loaded():
    changes = {**AXES["loss"]["bypass_mode"], **AXES["estimator"]["gdpo"], **AXES["micro_batch"]["tokens"]}
    overrides = [f"{key}={_text(value)}" for key, value in {**BASE, **changes}.items()]
    loaded = OmegaConf.to_container(load_config("tiny", overrides).config, resolve=True)
    assert OmegaConf.to_container(derived(changes), resolve=True) == loaded


def _text(value) -> str:
    """A value as hydra reads it on a command line."""
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)
