"""Runs that agree and prove nothing."""

import dataclasses

import pytest
import torch

from parity_tests.capture import Capture
from parity_tests.compare import compare


@pytest.fixture
def line(save, synthetic):
    """The last line of a comparison of two equal runs that a change has emptied of meaning."""

    def run(change, config=None):
        sides = []
        for name in ("legacy", "v1"):
            records = synthetic()
            change(records)
            sides.append(save(name, records, config and config(name == "v1")))
        verdict = compare(*sides)
        assert verdict.exit_code == (0 if verdict.line == "PARITY PASS" else 1)
        return verdict.line

    return run


def test_a_capture_set_against_itself(save, records, tmp_path):
    capture = save("legacy", records)
    (tmp_path / "link").symlink_to(capture.directory)
    for other in (capture, Capture.open(tmp_path / "link")):
        assert compare(capture, other).vacuous == (f"both sides are the same capture, {capture.directory}",)


@pytest.mark.parametrize("settings", [{"other": 1}, {"trainer": None}, {"trainer": {"total_training_steps": 2}}])
def test_a_config_that_is_no_trainers(save, records, synthetic, edit, settings):
    """Nobody can tell which stages should have run; what differs is told all the same."""
    verdict = compare(save("legacy", records, settings), save("v1", synthetic(), settings))
    assert verdict.line.startswith("PARITY VACUOUS: ")
    assert "its config does not say which stages should have run" in verdict.line
    edit(records, (1, "rollout"), responses=records[1, "rollout"].batch["responses"] + 1)
    assert compare(save("changed", records, settings), save("other", synthetic(), settings)).first.field == "responses"


def test_all_advantages_zero(line, edit):
    def change(records):
        for step in (1, 2):
            zeros = torch.zeros_like(records[step, "advantage"].batch["advantages"])
            edit(records, (step, "advantage"), advantages=zeros)

    assert line(change) == "PARITY VACUOUS: all advantages are zero"


def test_zero_advantages_in_one_step_only_are_no_reason(line, edit):
    zeros = torch.zeros_like
    assert (
        line(lambda r: edit(r, (1, "advantage"), advantages=zeros(r[1, "advantage"].batch["advantages"])))
        == "PARITY PASS"
    )


@pytest.mark.parametrize(("flat", "expected"), [(4, "PARITY PASS"), (5, "PARITY VACUOUS: only 3 of 8 groups")])
def test_groups_without_spread(line, edit, flat, expected):
    def change(records):
        for place, groups in (((1, "reward"), min(flat, 4)), ((2, "reward"), flat - min(flat, 4))):
            batch = records[place].batch
            scores = batch["token_level_scores"].clone()
            scores[batch.responses.spread(batch.groups) < groups] = 0.5
            last = batch.responses.positions == batch.responses.spread(batch.responses.lengths) - 1
            edit(records, place, token_level_scores=scores * last)

    assert line(change).startswith(expected)


def test_weights_that_did_not_change(line):
    def change(records):
        for step in (1, 2):
            update = records[step, "update_actor"]
            records[step, "update_actor"] = dataclasses.replace(update, digests=records[0, "initial"].digests)

    assert line(change) == "PARITY VACUOUS: the actor has no weight that changed between the start and step 2"


def test_no_record_of_the_weights_before_training(line):
    assert "no record 'initial'" in line(lambda records: records.pop((0, "initial")))


def test_a_configured_stage_that_neither_side_ran(line, config):
    reason = "stage values of step 1 is configured and did not run"
    assert reason in line(lambda _: None, lambda use_v1: config(use_v1, "gae"))


def test_a_stage_that_was_left_out_once_on_both_sides(line):
    reason = "PARITY VACUOUS: stage reward of step 2 is configured and did not run"
    assert line(lambda records: records.pop((2, "reward"))) == reason


def test_a_run_shorter_than_configured(line):
    def change(records):
        for place in [place for place in records if place[0] == 2]:
            del records[place]

    assert "stage rollout of step 2 is configured and did not run" in line(change)


def test_the_actor_waits_while_the_critic_warms_up(line, config):
    def warm_up(use_v1):
        return config(use_v1) | {"trainer": config(use_v1)["trainer"] | {"critic_warmup": 2}}

    assert line(lambda records: records.pop((1, "update_actor")), warm_up) == "PARITY PASS"


def test_no_step_at_all(line, config):
    def no_limit(use_v1):
        return config(use_v1) | {"trainer": config(use_v1)["trainer"] | {"total_training_steps": None}}

    def change(records):
        for place in [place for place in records if place[0] > 0]:
            del records[place]

    assert line(change, no_limit) == "PARITY VACUOUS: no step was run"
