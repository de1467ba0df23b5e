"""Faults planted in one of two equal captures: each must be found at its own step, stage, field, key and token."""

import dataclasses

import numpy as np
import pytest
import torch

from parity_tests.compare import compare
from parity_tests.verdict import Status, Tolerance
from runtime.errors import CaptureError
from runtime.identity import TrajectoryKey
from runtime.trainer.hooks import StageRecord
from runtime.trajectories import TrajectoryBatch
from shared_algos.segments import Segments


@pytest.fixture
def compared(save, synthetic, records):
    """Compare the clean records with what a fault made of a copy; returns the verdict."""

    def run(fault=lambda _: None, **options):
        faulty = synthetic()
        fault(faulty)
        return compare(save("legacy", records), save("v1", faulty), **options)

    return run


def place(verdict):
    first = verdict.first
    return first.step, first.stage, first.field, first.key, first.token


def test_equal_captures_pass_and_every_field_was_compared(compared):
    verdict = compared()
    assert verdict.line == "PARITY PASS"
    assert verdict.exit_code == 0
    assert {field.status for field in verdict.fields} == {Status.EQUAL}
    fields = {(field.step, field.stage, field.field) for field in verdict.fields}
    assert {
        (0, "initial", "actor.layer.0"),
        (1, "rollout", "keys"),
        (1, "rollout", "prompt_lengths"),
        (1, "rollout", "responses"),
        (1, "rollout", "data_source"),
        (2, "advantage", "advantages"),
        (2, "update_actor", "actor/pg_loss"),
        (2, "update_actor", "actor.layer.2"),
    } <= fields
    assert len(verdict.fields) == 3 + 2 * ((3 + 5 + 1) + (3 + 2) + (3 + 2) + (3 + 3 + 1) + (1 + 3))
    assert verdict.metadata == {}


def test_one_changed_value_is_named_with_both_values(compared, edit, records):
    batch = records[2, "advantage"].batch
    where = int(batch.responses.offsets[7]) + 0
    changed = batch["advantages"].clone()
    changed[where] += 1

    verdict = compared(lambda faulty: edit(faulty, (2, "advantage"), advantages=changed))

    key = str(batch.keys[7])
    assert place(verdict) == (2, "advantage", "advantages", key, 0)
    before, after = np.float32(batch["advantages"][where]), np.float32(changed[where])
    assert verdict.line == (
        f"PARITY DIVERGED at step 2 stage advantage field advantages key {key} token 0: legacy {before!s}, v1 {after!s}"
    )
    assert verdict.exit_code == 1
    assert verdict.first.max_abs == pytest.approx(1.0)
    assert verdict.first.mean_abs == pytest.approx(1 / batch.responses.num_tokens)
    assert sum(field.status.failed for field in verdict.fields) == 1


def test_the_last_bit_of_one_log_prob_is_found(compared, edit, records):
    batch = records[1, "old_log_prob"].batch
    changed = batch["old_log_probs"].clone()
    changed[-1] = torch.nextafter(changed[-1], torch.tensor(9.0))
    verdict = compared(lambda faulty: edit(faulty, (1, "old_log_prob"), old_log_probs=changed))
    last = int(batch.responses.lengths[-1]) - 1
    assert place(verdict) == (1, "old_log_prob", "old_log_probs", str(batch.keys[-1]), last)
    assert verdict.first.max_ulp == 1


def test_the_earliest_of_several_divergences_is_first(compared, edit, records):
    def fault(faulty):
        for where in ((2, "rollout"), (1, "advantage"), (1, "old_log_prob")):
            name = list(records[where].batch.columns)[-1]
            edit(faulty, where, **{name: records[where].batch[name] + 1})

    assert place(compared(fault))[:3] == (1, "old_log_prob", "entropy")


def test_values_of_two_rows_swapped_under_their_keys(compared, records):
    def fault(faulty):
        batch = records[1, "reward"].batch
        order = list(range(len(batch)))
        order[4], order[5] = 5, 4
        swapped = dataclasses.replace(batch.select(order), keys=batch.keys, objects=batch.objects)
        faulty[1, "reward"] = dataclasses.replace(faulty[1, "reward"], batch=swapped)

    step, stage, field, key, _ = place(compared(fault))
    assert (step, stage, key) == (1, "reward", str(records[1, "reward"].batch.keys[4]))
    assert field in ("response_lengths", "rm_scores")


def test_rows_in_another_order_are_told_as_order_and_their_values_as_equal(compared, records):
    def fault(faulty):
        batch = records[1, "reward"].batch
        order = [1, 0, *range(2, len(batch))]
        faulty[1, "reward"] = dataclasses.replace(faulty[1, "reward"], batch=batch.select(order))

    verdict = compared(fault)
    assert place(verdict) == (1, "reward", "keys", str(records[1, "reward"].batch.keys[0]), None)
    assert (verdict.first.left, verdict.first.right) == ("row 0", "row 1")
    assert sum(field.status.failed for field in verdict.fields) == 1


def test_a_mask_shifted_by_one_token(compared, edit, records):
    batch = records[1, "rollout"].batch
    shifted = batch["response_mask"].roll(1)
    verdict = compared(lambda faulty: edit(faulty, (1, "rollout"), response_mask=shifted))
    where = int((shifted != batch["response_mask"]).nonzero()[0])
    row = int(batch.responses.rows[where])
    token = where - int(batch.responses.offsets[row])
    assert place(verdict) == (1, "rollout", "response_mask", str(batch.keys[row]), token)


@pytest.mark.parametrize("row", [0, 5, 11])
def test_a_dropped_key_is_named_and_the_other_rows_are_still_compared(compared, records, row):
    batch = records[2, "rollout"].batch

    def fault(faulty):
        rest = batch.select([number for number in range(len(batch)) if number != row])
        faulty[2, "rollout"] = dataclasses.replace(faulty[2, "rollout"], batch=rest)

    verdict = compared(fault)
    assert place(verdict) == (2, "rollout", "keys", str(batch.keys[row]), None)
    assert (verdict.first.left, verdict.first.right) == ("present", "absent")
    assert sum(field.status.failed for field in verdict.fields) == 1


def test_a_duplicated_key_is_named(compared, records):
    batch = records[1, "advantage"].batch

    def fault(faulty):
        twice = dataclasses.replace(batch, keys=(batch.keys[0], batch.keys[0], *batch.keys[2:]))
        faulty[1, "advantage"] = dataclasses.replace(faulty[1, "advantage"], batch=twice)

    verdict = compared(fault)
    assert place(verdict) == (1, "advantage", "keys", str(batch.keys[0]), None)
    assert (verdict.first.left, verdict.first.right) == ("present", "present 2 times")


def test_a_response_cut_short(compared, records):
    batch = records[1, "rollout"].batch
    length = int(batch.responses.lengths[3])

    def fault(faulty):
        lengths = batch.responses.lengths.clone()
        lengths[3] -= 1
        keep = torch.ones(batch.responses.num_tokens, dtype=torch.bool)
        keep[int(batch.responses.offsets[4]) - 1] = False
        columns = {name: column[keep] if len(column) == len(keep) else column for name, column in batch.columns.items()}
        cut = TrajectoryBatch(batch.keys, batch.prompts, Segments.from_lengths(lengths), columns)
        faulty[1, "rollout"] = dataclasses.replace(
            faulty[1, "rollout"], batch=dataclasses.replace(cut, objects=batch.objects)
        )

    verdict = compared(fault)
    key = str(batch.keys[3])
    assert place(verdict) == (1, "rollout", "response_lengths", key, length - 1)
    assert (verdict.first.left, verdict.first.right) == (str(length), str(length - 1))
    responses = next(field for field in verdict.fields if field.field == "responses")
    assert (responses.status, responses.key, responses.token) == (Status.DIVERGED, key, length - 1)
    prompts = next(field for field in verdict.fields if field.field == "prompts")
    assert prompts.status is Status.EQUAL


@pytest.mark.parametrize(("changed_row", "expected"), [(0, ("a_0_0", 1)), (2, ("a_1_0", 2))])
def test_of_a_changed_token_and_a_row_that_ends_early_the_first_is_told(save, changed_row, expected):
    keys = tuple(TrajectoryKey("a", session, 0) for session in range(3))
    prompts = Segments.from_lengths([1, 1, 1])
    tokens = [[1, 2], [3, 4, 5], [6, 7]]
    other = [[1, 2], [3, 4], [6, 7]]
    other[changed_row][1] = 99

    def capture(name, rows):
        responses = Segments.from_lengths([len(row) for row in rows])
        tokens = torch.tensor([token for row in rows for token in row])
        batch = TrajectoryBatch(keys, prompts, responses, {"responses": tokens})
        return save(name, {0: StageRecord(1, "rollout", batch)})

    verdict = compare(capture("legacy", tokens), capture("v1", other))
    found = next(field for field in verdict.fields if field.field == "responses")
    assert (found.key, found.token) == expected


def test_a_column_that_one_side_did_not_write(compared, records):
    def fault(faulty):
        batch = records[1, "advantage"].batch
        columns = {name: column for name, column in batch.columns.items() if name != "returns"}
        faulty[1, "advantage"] = dataclasses.replace(
            faulty[1, "advantage"], batch=dataclasses.replace(batch, columns=columns)
        )

    verdict = compared(fault)
    assert verdict.line == (
        "PARITY DIVERGED at step 1 stage advantage field returns key - token -: legacy present, v1 missing"
    )
    assert verdict.first.status is Status.MISSING


def test_another_dtype_diverges_even_with_equal_values(compared, edit, records):
    wider = records[1, "rollout"].batch["response_mask"].int()
    verdict = compared(lambda faulty: edit(faulty, (1, "rollout"), response_mask=wider))
    assert place(verdict) == (1, "rollout", "response_mask", None, None)
    assert "int64" in verdict.first.left
    assert "int32" in verdict.first.right


def test_an_object_of_one_row(compared, records):
    def fault(faulty):
        batch = records[1, "rollout"].batch
        sources = batch.objects["data_source"].copy()
        sources[6] = "demo/other"
        faulty[1, "rollout"] = dataclasses.replace(
            faulty[1, "rollout"], batch=dataclasses.replace(batch, objects={"data_source": sources})
        )

    verdict = compared(fault)
    assert place(verdict) == (1, "rollout", "data_source", str(records[1, "rollout"].batch.keys[6]), None)
    assert (verdict.first.left, verdict.first.right) == ("'demo/math'", "'demo/other'")


def test_one_mini_batch_loss_is_named(compared, records):
    first, second = records[2, "update_actor"].series["actor/pg_loss"]

    def fault(faulty):
        series = {"actor/pg_loss": (first, float(np.nextafter(second, 9)))}
        faulty[2, "update_actor"] = dataclasses.replace(faulty[2, "update_actor"], series=series)

    verdict = compared(fault)
    assert place(verdict) == (2, "update_actor", "actor/pg_loss", "mini-batch:1", None)
    assert verdict.first.max_ulp == 1
    assert (float(verdict.first.left), float(verdict.first.right)) == (second, float(np.nextafter(second, 9)))


def test_a_lost_mini_batch_is_named(compared, records):
    def fault(faulty):
        series = {"actor/pg_loss": records[1, "update_actor"].series["actor/pg_loss"][:1]}
        faulty[1, "update_actor"] = dataclasses.replace(faulty[1, "update_actor"], series=series)

    verdict = compared(fault)
    assert place(verdict) == (1, "update_actor", "actor/pg_loss", "mini-batch:1", None)
    assert (verdict.first.left, verdict.first.right) == ("2 values", "1 values")


def test_one_weight_is_named(compared, records):
    def fault(faulty):
        digests = {**records[1, "update_actor"].digests, "actor.layer.1": "f" * 64}
        faulty[1, "update_actor"] = dataclasses.replace(faulty[1, "update_actor"], digests=digests)

    verdict = compared(fault)
    assert place(verdict) == (1, "update_actor", "actor.layer.1", None, None)
    assert verdict.first.right == "sha256:" + "f" * 12


def test_a_stage_that_one_side_did_not_run_outranks_vacuity(compared):
    verdict = compared(lambda faulty: faulty.pop((2, "old_log_prob")))
    assert place(verdict) == (2, "old_log_prob", "record", None, None)
    assert (verdict.first.left, verdict.first.right) == ("present", "missing")
    assert verdict.vacuous
    assert verdict.line.startswith("PARITY DIVERGED at step 2 stage old_log_prob")


def test_a_damaged_file_is_an_error_not_a_verdict(save, synthetic, records):
    left, right = save("legacy", records), save("v1", synthetic())
    file = right.directory / "step_2" / "rollout.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(CaptureError, match=r"v1/step_2/rollout.safetensors"):
        compare(left, right)


def test_rows_made_with_other_uids_are_joined_by_prompt_position(save, synthetic, edit, records):
    other = synthetic(seed_of_uids=1)
    verdict = compare(save("legacy", records), save("v1", other))
    assert verdict.joined_by_position
    assert verdict.line == "PARITY PASS"

    changed = other[1, "advantage"].batch["returns"].clone()
    changed[0] += 1
    edit(other, (1, "advantage"), returns=changed)
    verdict = compare(save("again", records), save("other", other))
    assert place(verdict) == (1, "advantage", "returns", str(records[1, "advantage"].batch.keys[0]), 0)


def test_other_uids_in_one_run_of_ours_are_a_fault(save, synthetic, records):
    other = synthetic(seed_of_uids=1)
    verdict = compare(save("legacy", records), save("v1", other), by_position=False)
    assert place(verdict)[:3] == (1, "rollout", "keys")


def test_uids_with_underscores_and_several_outputs_of_a_session(save, records):
    keys = [TrajectoryKey("a_b", 0, 0), TrajectoryKey("a_b", 0, 1), TrajectoryKey("a", 1, 0)]
    batch = TrajectoryBatch(
        tuple(keys),
        Segments.from_lengths([1, 1, 1]),
        Segments.from_lengths([1, 2, 1]),
        {"returns": torch.tensor([1.0, 2.0, 3.0, 4.0])},
    )
    changed = batch.with_columns({"returns": torch.tensor([1.0, 2.0, 5.0, 4.0])})
    pair = [
        save(name, records | {(1, "advantage"): dataclasses.replace(records[1, "advantage"], batch=rows)})
        for name, rows in (("legacy", batch), ("v1", changed))
    ]
    assert place(compare(*pair)) == (1, "advantage", "returns", "a_b_0_1", 1)


def test_the_last_line_is_one_line_whatever_a_uid_holds(save):
    keys = (TrajectoryKey("a\n::error::\x1b[31m\ud800 é", 0, 0),)
    rows = Segments.from_lengths([1])

    def side(name, token):
        batch = TrajectoryBatch(keys, rows, rows, {"responses": torch.tensor([token])})
        return save(name, {0: StageRecord(1, "rollout", batch)})

    line = compare(side("legacy", 1), side("v1", 2)).line
    assert line == (
        r"PARITY DIVERGED at step 1 stage rollout field responses key a\n::error::\x1b[31m\ud800 é_0_0 token 0: "
        "legacy 1, v1 2"
    )


def test_a_tolerance_that_names_no_field_is_told(save, records):
    left, right = save("legacy", records), save("v1", records)
    given = {place: Tolerance(1, 1) for place in ("values", "old_log_prob", "old_log_prob.nothing")}
    assert compare(left, right, given).notes == ("no field is named by the tolerance of values, old_log_prob.nothing",)
    assert compare(left, right, {}).notes == ()


def test_tolerance_judges_the_largest_and_the_mean_difference(save, synthetic, edit, records):
    drift = records[1, "old_log_prob"].batch["old_log_probs"] + 1e-4
    faulty = synthetic()
    edit(faulty, (1, "old_log_prob"), old_log_probs=drift)
    left, right = save("legacy", records), save("v1", faulty)

    wide = compare(left, right, {"old_log_prob": Tolerance(max_abs=1e-3, mean_abs=1e-3)})
    assert wide.line == "PARITY PASS"
    assert [field.field for field in wide.fields if field.status is Status.WITHIN] == ["old_log_probs"]
    assert compare(left, right, {"old_log_prob": Tolerance(max_abs=1e-5, mean_abs=1e-3)}).exit_code == 1
    assert compare(left, right, {"old_log_prob": Tolerance(max_abs=1e-3, mean_abs=1e-5)}).exit_code == 1
    assert compare(left, right, {"advantage": Tolerance(max_abs=1, mean_abs=1)}).exit_code == 1


def test_exported_weights_are_compared_by_value(save, synthetic, records, export_weights):
    left, right = save("legacy", records), save("v1", synthetic())
    weights = {"actor.layer.0": torch.ones(2, 3), "actor.layer.1": torch.zeros(2)}
    left = export_weights(left, weights)
    assert compare(left, right).line.startswith("PARITY DIVERGED at step 2 stage weights field export")
    right = export_weights(right, weights | {"actor.layer.0": torch.full((2, 3), 1.25)})
    verdict = compare(left, right)
    assert place(verdict) == (2, "weights", "actor.layer.0", None, None)
    assert (verdict.first.max_abs, verdict.first.left, verdict.first.right) == (0.25, "1.0", "1.25")
    assert compare(left, right, {"weights": Tolerance(0.3, 0.3)}).exit_code == 0


def test_two_different_configs_are_told_and_decide_nothing(save, synthetic, records, config):
    changed = config(True)
    changed["actor_rollout_ref"]["actor"]["optim"]["lr"] = 1e-5
    verdict = compare(save("legacy", records), save("v1", synthetic(), changed))
    assert verdict.metadata == {"['config']['actor_rollout_ref']['actor']['optim']['lr']": (1e-06, 1e-05)}
    assert verdict.exit_code == 0
