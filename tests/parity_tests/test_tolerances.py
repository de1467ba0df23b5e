"""Which tolerance judges which field, files of tolerances, and what a calibration proposes."""

import dataclasses

import pytest
import torch

from parity_tests.calibrate import Spread, measure, perturbations, proposed
from parity_tests.tolerances import TABLE, as_yaml, read_tolerances, tolerances_between, tolerances_of
from parity_tests.verdict import EXACT, Tolerance
from runtime.config import load_config
from runtime.errors import CaptureError, ConfigError

GRPO = {"adv_estimator": "grpo", "use_kl_in_reward": False}


def config_of(dtype="float32", **algorithm):
    return {"algorithm": GRPO | algorithm, "actor_rollout_ref": {"actor": {"fsdp_config": {"dtype": dtype}}}}


# Which one applies.


def test_algorithm_stages_have_no_entry_and_no_mean_is_above_its_maximum():
    assert {place.split(".")[0] for place in TABLE}.isdisjoint({"reward", "balance", "resample"})
    assert "rollout" not in TABLE
    for by_dtype in TABLE.values():
        fine, coarse = by_dtype["float32"], by_dtype["bfloat16"]
        assert 0 < fine.mean_abs <= fine.max_abs < coarse.max_abs
        assert fine.mean_abs < coarse.mean_abs <= coarse.max_abs


@pytest.mark.parametrize(
    ("algorithm", "exact"),
    [
        ({}, True),
        ({"adv_estimator": "remax"}, True),
        ({"adv_estimator": "gae"}, False),
        ({"adv_estimator": "optimal_token_baseline"}, False),
        ({"use_kl_in_reward": True}, False),
        ({"rollout_correction": {"rollout_is": "token"}}, False),
        ({"rollout_correction": {"rollout_rs": "seq_mean_k1"}}, False),
        ({"rollout_correction": {"rollout_is": None, "rollout_rs": None}}, True),
        ({"adv_estimator": "one of the user's"}, False),
    ],
)
def test_advantages_are_judged_by_bits_unless_they_are_made_from_what_a_model_computed(algorithm, exact):
    found = tolerances_of(config_of(**algorithm))
    assert (found.get("advantage.advantages") == EXACT) is exact
    assert not found["advantage"].exact


@pytest.mark.parametrize(
    ("dtype", "judged_as"),
    [
        ("float32", "float32"),
        ("fp32", "float32"),
        ("bfloat16", "bfloat16"),
        ("bf16", "bfloat16"),
        ("float16", "bfloat16"),
    ],
)
def test_the_dtype_is_that_of_the_model_which_computes_the_stage(dtype, judged_as):
    found = tolerances_of(config_of(dtype))
    assert found["old_log_prob"] == TABLE["old_log_prob"][judged_as]
    assert found["values"] == TABLE["values"]["float32"]


def test_our_own_configs_have_a_dtype_for_every_entry():
    from omegaconf import OmegaConf

    coarse = OmegaConf.to_container(load_config("ppo_trainer").config, resolve=True)
    assert {tolerance for tolerance in tolerances_of(coarse).values() if not tolerance.exact} == {
        by_dtype["bfloat16"] for by_dtype in TABLE.values()
    }


def test_equal_fingerprints_mean_bits(save, records):
    left, right = save("legacy", records), save("v1", records)
    assert tolerances_between(left, right) == ({}, None)
    other = dataclasses.replace(right, manifest={**right.manifest, "fingerprint": {"cpu_isa": "OTHER"}})
    found, note = tolerances_between(left, other)
    assert found["old_log_prob"] == TABLE["old_log_prob"]["float32"]
    assert "old_log_prob max" in note
    assert "advantage.advantages" not in note


# Files.


def test_a_file_reads_back_as_it_was_written(tmp_path):
    tolerances = {"old_log_prob": Tolerance(2.5e-5, 1e-6), "rollout.rollout_log_probs": EXACT}
    path = tmp_path / "tolerances.yaml"
    path.write_text(as_yaml(tolerances, "how\nit was made"))
    assert read_tolerances(path) == tolerances


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("old_logprob: {max_abs: 1, mean_abs: 1}", "old_logprob is not a stage"),
        ("reward: {max_abs: 1, mean_abs: 1}", "reward is computed by algorithms"),
        ("rollout: {max_abs: 1, mean_abs: 1}", "rollout is computed by algorithms"),
        ("rollout.responses: {max_abs: 1, mean_abs: 1}", "rollout.responses is computed by algorithms"),
        ("values: {max_abs: -1, mean_abs: 0}", r"values\.max_abs is -1"),
        ("values: {max_abs: .nan, mean_abs: 0}", r"values\.max_abs is nan"),
        ("values: {max_abs: .inf, mean_abs: 0}", r"values\.max_abs is inf"),
        ("values: {max_abs: 1, mean_abs: much}", r"values\.mean_abs is 'much'"),
        ("values: {max_abs: true, mean_abs: 0}", r"values\.max_abs is True"),
        ("values: {max_abs: 1}", "values must hold max_abs and mean_abs"),
        ("values: {max_abs: 1, mean_abs: 1, ulp: 3}", "values must hold max_abs and mean_abs"),
        ("values: 1", "values must hold max_abs and mean_abs"),
        ("values: {max_abs: 1, mean_abs: 2}", r"values\.mean_abs 2 is above max_abs 1"),
        ("- values", "not a list"),
        ("values: {", "cannot be read as YAML"),
    ],
)
def test_a_bad_file_is_refused_naming_it_and_the_key(tmp_path, text, message):
    path = tmp_path / "tolerances.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_tolerances(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="nothere"):
        read_tolerances(tmp_path / "nothere.yaml")


# Calibration.


def test_the_widest_spread_of_several_runs_is_measured_and_multiplied(save, synthetic, edit, records):
    batch = records[2, "old_log_prob"].batch
    runs = {}
    for name, by in (("threads", 1e-6), ("kernels", 3e-6)):
        changed = synthetic()
        column = batch["old_log_probs"].double()
        column[5] += by
        edit(changed, (2, "old_log_prob"), old_log_probs=column.float())
        runs[name] = save(name, changed)
    spreads = measure(save("base", records), runs)
    assert spreads["old_log_prob"].max_abs == pytest.approx(3e-6, rel=0.1)
    assert spreads["old_log_prob"].mean_abs == pytest.approx(3e-6 / len(batch["old_log_probs"]), rel=0.1)
    assert spreads["old_log_prob"].widest == "kernels: old_log_probs"
    assert spreads["update_actor"] == Spread()
    tolerances = proposed(spreads, safety=2)
    assert tolerances["old_log_prob"].max_abs == 2 * spreads["old_log_prob"].max_abs
    assert tolerances["update_actor"] == EXACT
    assert list(tolerances) == [place for place in TABLE if place in tolerances]


def test_runs_that_sampled_other_tokens_measure_nothing(save, synthetic, edit, records):
    other = synthetic()
    edit(other, (1, "rollout"), responses=records[1, "rollout"].batch["responses"] + 1)
    with pytest.raises(CaptureError, match=r"other threads did something else: .*field responses.*recorded"):
        measure(save("base", records), {"threads": save("threads", other)})


def test_grpo_advantages_that_differ_are_a_fault_and_no_spread(save, synthetic, edit, records):
    other = synthetic()
    advantages = records[1, "advantage"].batch["advantages"]
    edit(other, (1, "advantage"), advantages=torch.nextafter(advantages, advantages + 1))
    with pytest.raises(CaptureError, match="field advantages"):
        measure(save("base", records), {"threads": save("threads", other)})


def test_a_run_is_perturbed_in_kernels_threads_and_micro_batches():
    ways = {way.name: way for way in perturbations(load_config("tiny", ["runtime.torch_threads=2"]).config)}
    assert ways["threads"].overrides == ("runtime.torch_threads=1",)
    assert ways["micro-batches"].overrides == ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",)
    assert ways["kernels for any CPU"].environment["ATEN_CPU_CAPABILITY"] == "default"
