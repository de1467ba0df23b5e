"""Helpers of ``verl.utils`` give what verl 0.9.1 gives, on random inputs."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from compat.protocol import DataProto
from compat.utils import (
    flops_counter,
    groupwise,
    metric,
    model,
    py_functional,
    seqlen_balancing,
    torch_functional,
    ulysses,
)

pytestmark = pytest.mark.oracle
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def verl() -> Iterator[Callable[..., Any]]:
    """``verl(function, **arguments)``: the answer of a function of ``utils_side.py``."""
    folder = HERE.parents[1] / ".oracle"
    if not (folder / "verl").is_dir():
        pytest.skip("verl 0.9.1 is not in .oracle/: run tests/oracle/install.sh")
    command = [sys.executable, str(HERE / "utils_side.py"), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment, cwd=HERE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def call(function: str, **arguments: Any) -> Any:
            pickle.dump((function, arguments), process.stdin)
            process.stdin.flush()
            succeeded, answer = pickle.load(process.stdout)
            assert succeeded, answer
            return answer

        yield call
        process.stdin.close()


@pytest.fixture(scope="module")
def verl_does(verl) -> Callable[..., Any]:
    """``verl_does(module, name, *arguments, **keywords)``: a function below ``verl.utils``."""
    return lambda module, name, *arguments, **keywords: verl(
        "of_module", module=module, name=name, arguments=arguments, keywords=keywords
    )


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("method", ["karmarkar_karp", "greedy_partition", "get_seqlen_balanced_partitions"])
def test_partitions_are_verls(verl_does, method, seed):
    """The very same parts in the same order, ties included."""
    chance = random.Random(seed)
    parts, equal = chance.randint(1, 6), bool(seed % 2)
    rows = parts * chance.randint(1, 8) if equal else chance.randint(parts, 40)
    lengths = [chance.randint(1, 5 if seed % 3 else 4000) for _ in range(rows)]
    ours = getattr(seqlen_balancing, method)(lengths, parts, equal)
    assert ours == verl_does("seqlen_balancing", method, lengths, parts, equal)


@pytest.mark.parametrize("seed", range(20))
def test_groups_and_imbalance_are_verls(verl_does, seed):
    chance = random.Random(seed)
    parts, each = chance.randint(1, 4), chance.randint(1, 4)
    uids = [uid for uid in range(parts * chance.randint(1, 4)) for _ in range(each)]
    lengths = [chance.randint(1, 900) for _ in uids]
    ours = seqlen_balancing.get_group_balanced_partitions(lengths, uids, parts)
    assert ours == verl_does("seqlen_balancing", "get_group_balanced_partitions", lengths, uids, parts)
    figures = seqlen_balancing.log_seqlen_unbalance(lengths, ours, "seqlen")
    assert figures == verl_does("seqlen_balancing", "log_seqlen_unbalance", lengths, ours, "seqlen")


@pytest.mark.parametrize("seed", range(40))
def test_dynamic_batches_are_verls(verl, seed):
    chance = np.random.default_rng(seed)
    rows, width = int(chance.integers(1, 24)), 16
    lengths = torch.from_numpy(chance.integers(1, width + 1, rows))
    tensors = {
        "input_ids": torch.from_numpy(chance.integers(0, 99, (rows, width))),
        "attention_mask": (torch.arange(width) < lengths[:, None]).long(),
    }
    objects = {"uid": np.array([f"u{row}" for row in range(rows)], dtype=object)}
    limits = {"max_token_len": int(chance.integers(width, 60)), "use_dynamic_bsz_balance": bool(seed % 2)}
    parts, places = seqlen_balancing.prepare_dynamic_batch(DataProto.from_dict(tensors, objects), **limits)
    their_places, their_ids, their_uids = verl("dynamic_batch", tensors=tensors, objects=objects, **limits)
    assert places == their_places
    assert all(torch.equal(part.batch["input_ids"], ids) for part, ids in zip(parts, their_ids, strict=True))
    assert [part.non_tensor_batch["uid"].tolist() for part in parts] == their_uids


@pytest.mark.parametrize("labels", [[3, 1, 3], ["b", "a", "b"], ["7", "3"], [1.0, 2.0], [True, False]])
def test_group_labels_are_verls(verl_does, labels):
    theirs = verl_does("groupwise", "as_torch_index", labels, device="cpu")
    assert groupwise.as_torch_index(labels).tolist() == theirs.tolist()


def test_labels_with_fractions_stay_apart_where_verl_joins_them(verl_does):
    assert groupwise.as_torch_index([1.2, 1.5, 1.2]).tolist() == [0, 1, 0]
    assert verl_does("groupwise", "as_torch_index", [1.2, 1.5, 1.2], device="cpu").tolist() == [1, 1, 1]


@pytest.mark.parametrize("seed", range(20))
def test_group_statistics_are_verls(verl_does, seed):
    chance = np.random.default_rng(seed)
    groups = torch.from_numpy(chance.integers(0, 6, 20))
    scores = torch.from_numpy(chance.normal(0, 3, 20)).float()
    theirs = verl_does("groupwise", "group_mean_std", scores, groups, device="cpu")
    for ours, expected in zip(groupwise.group_mean_std(scores, groups), theirs, strict=True):
        torch.testing.assert_close(ours, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("truncation", ["left", "right", "middle"])
@pytest.mark.parametrize("width", [3, 6, 7, 11])
@pytest.mark.parametrize("left_pad", [True, False])
def test_padding_and_cutting_are_verls(verl_does, truncation, width, left_pad):
    ids = torch.arange(2 * width).view(2, width)
    arguments = (ids, torch.ones_like(ids), 6, 99, left_pad, truncation)
    ours = torch_functional.postprocess_data(*arguments)
    theirs = verl_does("torch_functional", "postprocess_data", *arguments)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("get_response_mask", ([[20, 10, 34, 1, 0], [78, 0, 76, 2, 1], [3, 4, 5, 6, 7]], 1)),
        ("get_response_mask", ([[20, 10, 34, 1, 0], [78, 0, 76, 2, 1], [3, 4, 5, 6, 7]], [1, 2])),
        ("remove_pad_token", ([[0, 0, 5, 6], [1, 2, 3, 4]], [[0, 0, 1, 1], [1, 1, 1, 1]])),
        ("get_unpad_data", ([[0, 0, 1, 1], [1, 1, 1, 1]],)),
    ],
)
def test_masks_are_verls(verl_does, name, arguments):
    first, *rest = arguments
    rest = [torch.tensor(rest[0])] if name == "remove_pad_token" else rest
    ours = getattr(torch_functional, name)(torch.tensor(first), *rest)
    theirs = verl_does("torch_functional", name, torch.tensor(first), *rest)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_positions_and_lists_are_verls(verl_does):
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0], [0, 1, 0, 1]])
    expected = verl_does("model", "compute_position_id_with_mask", mask)
    assert torch.equal(model.compute_position_id_with_mask(mask), expected)
    rows = [[1, 2, 3], [4], []]
    for longest in (None, 2, 5):
        expected = verl_does("torch_functional", "pad_2d_list_to_length", rows, 9, longest)
        assert torch.equal(torch_functional.pad_2d_list_to_length(rows, 9, longest), expected)


def test_scores_of_logits_are_verls(verl_does):
    logits = torch.randn(3, 5, 11, generator=torch.Generator().manual_seed(0))
    ids = torch.randint(0, 11, (3, 5), generator=torch.Generator().manual_seed(1))
    for name, arguments in {
        "log_probs_from_logits_response": (ids, logits, 3),
        "calculate_sum_pi_squared_from_logits": (logits,),
        "entropy_from_logits_with_chunking": (logits.view(-1, 11), 4),
        "logprobs_from_logits_v2": (logits, ids),
    }.items():
        ours = getattr(torch_functional, name)(*arguments)
        torch.testing.assert_close(ours, verl_does("torch_functional", name, *arguments), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("get_constant_schedule_with_warmup", {"num_warmup_steps": 5}),
        ("get_constant_schedule_with_warmup", {"num_warmup_steps": 0}),
        ("get_cosine_schedule_with_warmup", {"num_warmup_steps": 4, "num_training_steps": 15, "min_lr_ratio": 0.1}),
        ("get_cosine_schedule_with_warmup", {"num_warmup_steps": 0, "num_training_steps": 15, "num_cycles": 1.5}),
        (
            "get_cosine_schedule_with_warmup",
            {"num_warmup_steps": 4, "num_training_steps": 15, "init_lr_ratio": 0.3, "zero_indexed_step": False},
        ),
        ("get_wsd_schedule_with_warmup", {"num_warmup_steps": 4, "num_training_steps": 24, "stable_ratio": 0.6}),
        ("get_wsd_schedule_with_warmup", {"num_warmup_steps": 2, "num_training_steps": 12, "min_lr_ratio": 0.2}),
    ],
)
def test_schedules_are_verls(verl, name, arguments):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = getattr(torch_functional, name)(optimizer, **arguments)
    ours = []
    for _ in range(30):
        ours.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert ours == pytest.approx(verl("schedule", name=name, steps=30, **arguments), abs=1e-12)


@pytest.mark.parametrize("aggregation", ["mean", "sum", "min", "max"])
def test_metrics_are_verls(verl, aggregation):
    of_ranks = [[1.0, 5.0, -2.0], [4.0, 0.5, 3.0]]
    metrics = [metric.Metric(aggregation, values) for values in of_ranks]
    ours = metrics[0].aggregate(), metric.Metric.aggregate_dp(metrics)
    assert ours == verl("metric", aggregation=aggregation, of_ranks=of_ranks)


def test_collected_and_reduced_metrics_are_verls(verl, verl_does):
    steps = [{"actor/loss": 1.0, "critic/max": [2.0, 3.0]}, {"actor/loss": 2.5, "critic/max": 9.0, "least/min": 4.0}]
    ours: dict[str, Any] = {}
    for step in steps:
        py_functional.append_to_dict(ours, step, "actor/")
    assert ours == verl("appended", dictionaries=steps, prefix="actor/")
    assert metric.reduce_metrics(dict(ours)) == verl_does("metric", "reduce_metrics", dict(ours))


SIZES = {"hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 3, "vocab_size": 1000}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2}


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral", "seed_oss", "gpt2"])
@pytest.mark.parametrize("head_dim", [None, 24])
def test_operations_of_a_step(verl, model_type, head_dim):
    """Dense decoders alike; of gpt2 both know nothing, and say 0."""
    settings = {**SIZES, **HEADS, **({} if head_dim is None else {"head_dim": head_dim})}
    lengths = [5, 300, 1, 77]
    config = AutoConfig.for_model(model_type, **settings)
    ours, _ = flops_counter.FlopsCounter(config).estimate_flops(lengths, 0.25)
    assert ours == pytest.approx(verl("flops", model_type=model_type, settings=settings, lengths=lengths, seconds=0.25))


@pytest.mark.parametrize("name", [*flops_counter.DENSE_FLOPS, "NVIDIA H200 NVL", "NVIDIA L40S", "a name of nobody"])
@pytest.mark.parametrize("unit", ["M", "T"])
def test_peak_of_a_device(verl_does, name, unit):
    theirs = verl_does("flops_counter", "get_device_flops", unit, name)
    assert flops_counter.get_device_flops(unit, name) == pytest.approx(theirs)


def test_sequences_that_are_whole(verl_does):
    """Without a group verl hands back what it got, as ours."""
    ids, positions = torch.arange(7)[None], torch.arange(7)[None]
    for name, arguments in {
        "ulysses_pad": (ids, positions, 1),
        "gather_outputs_and_unpad": (ids, 0, 0, 3),
        "gather_seq_scatter_heads": (ids, 0, 1),
        "gather_heads_scatter_seq": (ids, 1, 0),
    }.items():
        ours, theirs = getattr(ulysses, name)(*arguments), verl_does("ulysses", name, *arguments)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
