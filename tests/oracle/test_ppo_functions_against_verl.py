"""The functions of ``verl.trainer.ppo`` that recipes call in their own ``fit()``: verl 0.9.1 and ours on 20 batches.

Columns are compared on mask-1 tokens, within 1e-9 relative where both compute in float64 and 1e-5 where verl has
float32 constants; figures within 1e-6, under the same names.
"""

import math
import pickle
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compat.ppo import advantage, core_algos, debug_metrics, kl, metrics, rollout_correction
from compat.protocol import DataProto
from runtime import validation_metrics

pytestmark = pytest.mark.oracle
FOLDER = Path(__file__).parents[2] / ".oracle"
SIDE = Path(__file__).with_name("ppo_side.py")
SHARED = runpy.run_path(str(SIDE))
TRAINER, CORE = "verl.trainer.ppo.ray_trainer", "verl.trainer.ppo.core_algos"
METRICS, CORRECTION = "verl.trainer.ppo.metric_utils", "verl.trainer.ppo.rollout_corr_helper"
OURS = {
    TRAINER: advantage,
    CORE: core_algos,
    METRICS: metrics,
    CORRECTION: rollout_correction,
    "verl.utils.debug.metrics": debug_metrics,
}
NEEDS_CONFIG = {"reinforce_plus_plus", "grpo_passk", "gdpo"}
SETTINGS = {"gamma": 0.97, "norm_adv_by_std_in_grpo": True}


@pytest.fixture(scope="module")
def verl() -> Iterator[Callable[..., Any]]:
    """``verl(module, name, seed=0, **arguments)``: what verl's function returns, and its batches afterwards."""
    if not (FOLDER / "verl").is_dir():
        pytest.skip("verl 0.9.1 is not in .oracle/: run tests/oracle/install.sh")
    pipe = subprocess.PIPE
    command = [sys.executable, str(SIDE), str(FOLDER)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:

        def call(module: str, name: str, seed: int = 0, **arguments: Any) -> Any:
            pickle.dump((module, name, arguments, seed), process.stdin)
            process.stdin.flush()
            succeeded, answer = pickle.load(process.stdout)
            assert succeeded, answer
            return answer

        yield call
        process.stdin.close()


@pytest.fixture
def batches(batches):
    """2 of 20 random batches; each call crosses a process boundary."""
    return batches[:2]


def ours(module, name, seed=0, **arguments):
    """What our function returns for the same call."""
    made = dict(arguments)
    for key, value in arguments.items():
        if isinstance(value, tuple) and value[0] == "controller":
            made[key] = getattr(kl, value[1])(*value[2:])
        if isinstance(value, tuple) and value[0] == "config":
            made[key] = value[1]
    return SHARED["run"](DataProto, getattr(OURS[module], name), made, seed)


def batch_of(batch, **more):
    """A finished batch as ``DataProto`` columns, float64; prompts of 3 tokens, the first ones padded."""
    rows, width = batch.mask.shape
    prompts = torch.arange(rows * 3).view(rows, 3) % 7
    prompt_mask = torch.arange(3) >= torch.arange(rows)[:, None] % 3
    old = -batch.column().abs()
    pi = old.exp()
    rewards = batch.rewards()
    columns = {
        "prompts": prompts,
        "responses": torch.zeros(rows, width, dtype=torch.int64),
        "attention_mask": torch.cat([prompt_mask, batch.exists], dim=1).long(),
        "response_mask": batch.mask,
        "token_level_scores": rewards,
        "token_level_rewards": rewards - 0.01 * batch.mask,
        "values": batch.column(),
        "old_log_probs": old,
        "ref_log_prob": old + batch.column(0.1),
        "rollout_log_probs": (old + batch.column(0.05)).clamp(max=-1e-3),
        "sum_pi_squared": pi.square() + (1 - pi).square() * batch.column().sigmoid(),
        "advantages": batch.column(),
        "returns": batch.column(),
        "reward_baselines": torch.from_numpy(batch.random.normal(size=rows)),
        **more,
    }
    uids = np.array([f"u{group}" for group in batch.groups.tolist()], dtype=object)
    arrays = {
        "uid": uids,
        "__num_turns__": batch.random.integers(1, 5, rows),
        "accuracy": batch.random.normal(size=rows),
    }
    lengths = columns["attention_mask"].sum(1).tolist()
    return "batch", columns, arrays, {"global_token_num": lengths, "temperature": 1.0}


def agree(batch, mine, theirs, rtol=1e-9):
    """Two padded columns on mask-1 tokens; ours is 0 elsewhere."""
    kept = batch.mask.bool()
    assert not mine[~kept].any()
    torch.testing.assert_close(mine[kept].double(), theirs[kept].double(), rtol=rtol, atol=rtol * 1e-3)


def same_figures(mine, theirs):
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        assert math.isnan(mine[name]) if math.isnan(value) else mine[name] == pytest.approx(value, rel=1e-6, abs=1e-6)


def without_small_groups(batch, name):
    """Groups of one differ on purpose in rloo_vectorized, and grpo_passk refuses them (in verl too)."""
    counts = batch.groups.bincount()[batch.groups]
    return name not in ("grpo_passk", "rloo_vectorized") or bool((counts > 1).all())


@pytest.mark.parametrize("name", [estimator.value for estimator in core_algos.AdvantageEstimator])
def test_compute_advantage(verl, batches, name):
    for batch in batches:
        if not without_small_groups(batch, name):
            continue
        settings = {**SETTINGS, **({"gdpo_reward_keys": ["accuracy"]} if name == "gdpo" else {})}
        arguments = {"data": batch_of(batch), "adv_estimator": name, "gamma": 0.97, "lam": 0.9}
        arguments["config"] = ("config", settings)
        if name != "remax":
            del arguments["data"][1]["reward_baselines"]  # verl's grpo_vectorized and token baselines stumble over it
        (_, theirs, *_), their_batches = verl(TRAINER, "compute_advantage", **arguments)
        (_, mine, *_), my_batches = ours(TRAINER, "compute_advantage", **arguments)
        assert mine.keys() == theirs.keys()
        for column in ("advantages", "returns"):
            agree(batch, mine[column], theirs[column], rtol=1e-5)
            assert my_batches["data"][1][column].equal(mine[column]), "set in place"
        assert their_batches["data"][1].keys() == my_batches["data"][1].keys()


@pytest.mark.parametrize("method", ["pow", "max_min", "max_random"])
def test_pf_ppo_after_gae(verl, batches, method):
    """The same rows are drawn, and all of their columns, objects and lists of meta_info move with them."""
    for seed, batch in enumerate(batches):
        settings = {"use_pf_ppo": True, "pf_ppo": {"reweight_method": method, "weight_pow": 2.0}}
        arguments = {"data": batch_of(batch), "adv_estimator": "gae", "config": ("config", settings), "seed": seed}
        (_, theirs, their_arrays, their_meta), _ = verl(TRAINER, "compute_advantage", **arguments)
        (_, mine, my_arrays, my_meta), _ = ours(TRAINER, "compute_advantage", **arguments)
        assert my_arrays["uid"].tolist() == their_arrays["uid"].tolist()
        assert my_meta == their_meta
        for column in theirs.keys() - {"advantages", "returns"}:
            assert mine[column].equal(theirs[column]), column


@pytest.mark.parametrize("kind", ["kl", "abs", "mse", "low_var_kl", "k3+"])
def test_apply_kl_penalty(verl, batches, kind):
    for batch in batches:
        for controller in (
            ("controller", "FixedKLController", 0.2),
            ("controller", "AdaptiveKLController", 0.2, 0.1, 50),
        ):
            arguments = {"data": batch_of(batch), "kl_ctrl": controller, "kl_penalty": kind}
            ((_, theirs, *_), their_metrics), _ = verl(TRAINER, "apply_kl_penalty", **arguments)
            ((_, mine, *_), my_metrics), _ = ours(TRAINER, "apply_kl_penalty", **arguments)
            difference = (mine["token_level_rewards"] - theirs["token_level_rewards"])[batch.mask.bool()]
            assert float(difference.abs().max()) < 1e-9
            same_figures(my_metrics, their_metrics)


def test_response_mask_and_lengths(verl, batches):
    for batch in batches:
        data = batch_of(batch)
        assert ours(TRAINER, "compute_response_mask", data=data)[0].equal(
            verl(TRAINER, "compute_response_mask", data=data)[0]
        )
        theirs = verl(METRICS, "_compute_response_info", batch=data)[0]
        mine = ours(METRICS, "_compute_response_info", batch=data)[0]
        assert all(mine[name].equal(theirs[name]) for name in ("prompt_length", "response_length"))


@pytest.mark.parametrize("use_critic", [True, False])
def test_data_metrics(verl, batches, use_critic):
    for number, batch in enumerate([*batches, *batches]):
        data = batch_of(batch)
        if number % 4 == 1:  # a row that was aborted before it said anything
            data[1]["attention_mask"][0, 3:] = 0
            data[1]["response_mask"] = data[1]["response_mask"].clone()
            data[1]["response_mask"][0] = 0
        if number % 4 == 2:
            data[1]["response_mask"] = torch.zeros_like(batch.mask)
        arguments = {"batch": data, "use_critic": use_critic}
        same_figures(
            ours(METRICS, "compute_data_metrics", **arguments)[0], verl(METRICS, "compute_data_metrics", **arguments)[0]
        )


def test_timing_throughput_and_variance(verl, batches):
    timing = {"gen": 2.0, "adv": 0.5, "update_actor": 4.0, "reward": 0.1, "step": 7.0}
    for batch in batches:
        data = batch_of(batch)
        weighted = batch_of(batch, rollout_is_weights=batch.column(0.3).exp() * batch.mask)
        calls = [
            ("compute_timing_metrics", {"batch": data, "timing_raw": timing}),
            ("compute_throughout_metrics", {"batch": data, "timing_raw": timing, "n_gpus": 2}),
            ("compute_variance_proxy_metrics", {"batch": data, "gradient_norm": 0.3}),
            ("compute_variance_proxy_metrics", {"batch": weighted}),
        ]
        for name, arguments in calls:
            same_figures(ours(METRICS, name, **arguments)[0], verl(METRICS, name, **arguments)[0])


def test_debug_metrics(verl, batches):
    for number, batch in enumerate([*batches, *batches]):
        data = batch_of(batch)
        if number % 3 == 1:
            del data[1]["response_mask"]
        if number % 3 == 2:
            data[1]["response_mask"] = torch.zeros_like(batch.mask)
        if number % 3 == 1:
            data[1]["attention_mask"] = data[1]["attention_mask"][:, 3:]
        name = ("verl.utils.debug.metrics", "calculate_debug_metrics")
        same_figures(ours(*name, data=data)[0], verl(*name, data=data)[0])


def flat(figures):
    return {(a, b, c): value for a, of_a in figures.items() for b, of_b in of_a.items() for c, value in of_b.items()}


@pytest.mark.parametrize("with_votes", [True, False])
def test_validation_metrics(verl, with_votes):
    random = np.random.default_rng(7)
    sources = ["gsm8k"] * 12 + ["aime"] * 5 + ["alone"]
    uids = [f"p{i // 4}" for i in range(12)] + ["q"] * 5 + ["r"]
    infos = {
        "reward": random.normal(size=18).tolist(),
        "acc": [None, *random.integers(0, 2, 17).astype(float).tolist()],
    }
    infos["pred"] = [str(vote) for vote in random.integers(0, 3, 18)] if with_votes else [None] * 18
    arguments = {"data_sources": sources, "sample_uids": uids, "infos_dict": infos}
    for expected in (None, {("gsm8k", "p0"): 4, ("gsm8k", "p9"): 2, ("missing", "x"): 1}):
        arguments["expected_acc_counts"] = expected
        theirs, _ = verl(METRICS, "process_validation_metrics", **arguments)
        same_figures(flat(validation_metrics.process_validation_metrics(**arguments)), flat(theirs))


def test_bootstrap_and_majority(verl):
    data = [1.0, 2.0, 5.0, 3.0]
    arguments = {"data": data, "subset_size": 3, "reduce_fns": [np.mean, np.max], "n_bootstrap": 50}
    theirs, _ = verl(METRICS, "bootstrap_metric", **arguments)
    mine = validation_metrics.bootstrap_metric(**arguments)
    assert np.allclose(mine, theirs)
    votes = [{"pred": p, "val": v} for p, v in (("a", 1), ("b", 2), ("b", 3), ("a", 4))]
    arguments = {"data": votes, "vote_key": "pred", "val_key": "val"}
    assert validation_metrics.calc_maj_val(**arguments) == verl(METRICS, "calc_maj_val", **arguments)[0] == 1


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("modes", ["token_k1", "seq_mean_k1", "seq_max_k2,token_k3"])
def test_rollout_correction(verl, batches, level, modes):
    threshold = "0.5_2.0" if modes.endswith("k1") else "0.2"
    for batch in batches:
        data = batch_of(batch)
        settings = {"rollout_is": level, "rollout_rs": modes, "rollout_rs_threshold": threshold}
        name = "compute_rollout_correction_and_add_to_batch"
        ((_, theirs, *_), their_metrics), _ = verl(CORRECTION, name, batch=data, rollout_corr_config=settings)
        ((_, mine, *_), my_metrics), _ = ours(CORRECTION, name, batch=data, rollout_corr_config=settings)
        assert mine.keys() == theirs.keys()
        assert mine["response_mask"].equal(theirs["response_mask"])
        kept = mine["response_mask"].bool()
        torch.testing.assert_close(
            mine["rollout_is_weights"][kept], theirs["rollout_is_weights"][kept], rtol=1e-9, atol=1e-12
        )
        assert my_metrics.keys() == their_metrics.keys()


def test_parts_of_rollout_correction(verl, batches):
    for batch in batches:
        data = batch_of(batch)[1]
        ratio = data["old_log_probs"] - data["rollout_log_probs"]
        kept = batch.mask.bool()
        calls = [
            ("compute_rollout_correction_weights", {"rollout_is_threshold": "0.9_1.1"}),
            ("compute_rollout_rejection_mask", {"rollout_rs_threshold": "0.9_1.1"}),
        ]
        for name, settings in calls:
            arguments = {"log_ratio": ratio, "response_mask": batch.mask, **settings}
            (theirs, their_metrics), _ = verl(CORRECTION, name, **arguments)
            (mine, my_metrics), _ = ours(CORRECTION, name, **arguments)
            torch.testing.assert_close(mine[kept], theirs[kept], rtol=1e-9, atol=1e-12)
            assert my_metrics.keys() == their_metrics.keys()
        columns = {"response_mask": batch.mask, "rollout_log_prob": data["rollout_log_probs"]}
        for name, own in (
            ("compute_offpolicy_metrics", "old_log_prob"),
            ("compute_rollout_corr_metrics_from_logprobs", "log_prob"),
        ):
            arguments = {**columns, own: data["old_log_probs"]}
            same_figures(ours(CORRECTION, name, **arguments)[0], verl(CORRECTION, name, **arguments)[0])


def test_losses_of_every_form(verl, batches):
    for batch in batches:
        columns = {
            "old_log_prob": batch.column(),
            "log_prob": batch.column(),
            "advantages": batch.column(),
            "response_mask": batch.mask,
        }
        old_form = {**columns, "cliprange": 0.2, "cliprange_high": 0.3, "loss_agg_mode": "seq-mean-token-mean"}
        values = {
            "vpreds": batch.column(),
            "returns": batch.column(),
            "values": batch.column(),
            "response_mask": batch.mask,
            "cliprange_value": 0.5,
        }
        counts = {"dp_size": 2, "batch_num_tokens": 77, "global_batch_size": 9}
        logits = torch.from_numpy(batch.random.normal(size=(*batch.mask.shape, 5)))
        of_rewards = {
            "token_level_scores": batch.column(),
            "old_log_prob": batch.column(),
            "ref_log_prob": batch.column(),
            "kl_ratio": 0.1,
        }
        calls = [
            ("compute_policy_loss", old_form),
            ("compute_value_loss", values),
            ("compute_value_loss", {**values, **counts, "loss_agg_mode": "seq-mean-token-sum"}),
            ("compute_entropy_loss", {"logits": logits, "response_mask": batch.mask}),
            ("compute_rewards", of_rewards),
        ]
        for name, arguments in calls:
            theirs, _ = verl(CORE, name, **arguments)
            mine, _ = ours(CORE, name, **arguments)
            mine, theirs = (result if isinstance(result, tuple) else (result,) for result in (mine, theirs))
            for value, reference in zip(mine, theirs, strict=True):
                torch.testing.assert_close(value.double(), reference.double(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["vanilla", "gspo", "gpg", "cispo", "reinforce"])
def test_losses_divide_by_the_counts_of_the_config(verl, batches, name):
    """``config.global_batch_info``, which verl's workers set, says what the rows at hand are a part of."""
    for batch in batches:
        first = "rollout_log_prob" if name == "reinforce" else "old_log_prob"
        arguments = {
            first: batch.column(),
            "log_prob": batch.column(),
            "advantages": batch.column(),
            "response_mask": batch.mask,
        }
        info = {"dp_size": 2, "batch_num_tokens": 500, "global_batch_size": 40}
        for mode in ("token-mean", "seq-mean-token-sum"):
            settings = ("actor", {"clip_ratio": 0.2, "global_batch_info": info})
            function = f"compute_policy_loss_{name}"
            theirs, _ = verl(CORE, function, config=settings, loss_agg_mode=mode, **arguments)
            loss, figures = getattr(core_algos, function)(config=settings[1], loss_agg_mode=mode, **arguments)
            torch.testing.assert_close(loss, theirs[0], rtol=1e-6, atol=1e-12)
            for metric, value in theirs[1].items():
                assert figures[metric] == pytest.approx(value, rel=1e-6, abs=1e-9)
