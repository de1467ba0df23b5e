"""What only a GPU can show: both trainers agree there, over NCCL, in bfloat16, and twice the same. See docs/gpu.md."""

from pathlib import Path

import pytest
import torch

from parity_tests.capture import Capture
from parity_tests.compare import compare
from parity_tests.run import TRAINERS, capture_run, for_parity, run_parity
from runtime.config import load_config
from runtime.devices import compute_repeatably, device_of

GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.ray,
    pytest.mark.skipif(GPUS == 0, reason="needs a CUDA device (docs/gpu.md)"),
]
STEPS = 2
BASE = ["trainer.device=cuda", "trainer.logger=[jsonl]", "data.train_batch_size=4", "actor_rollout_ref.rollout.n=2"]
BASE += ["actor_rollout_ref.actor.ppo_mini_batch_size=2", "algorithm.adv_estimator=gae"]
BFLOAT16 = [
    "actor_rollout_ref.actor.fsdp_config.dtype=bfloat16",
    "critic.fsdp.dtype=bfloat16",
    "actor_rollout_ref.ref.fsdp_config.dtype=bfloat16",
    "actor_rollout_ref.rollout.dtype=bfloat16",
]


def two_gpus(*overrides):
    return pytest.param(overrides, marks=pytest.mark.skipif(GPUS < 2, reason="needs two CUDA devices, for NCCL"))


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("actor_rollout_ref.actor.use_kl_loss=true", *BFLOAT16),
        ("actor_rollout_ref.model.use_remove_padding=false", "critic.model.use_remove_padding=false"),
        two_gpus("trainer.n_gpus_per_node=2"),
        two_gpus("trainer.n_gpus_per_node=2", "actor_rollout_ref.actor.use_kl_loss=true", *BFLOAT16),
    ],
    ids=["packed", "bfloat16", "padded", "nccl", "nccl-bfloat16"],
)
def test_both_trainers_agree_bit_by_bit(cluster, tmp_path, overrides):  # noqa: ARG001
    verdict = run_parity(load_config("tiny", [*BASE, *overrides]).config, tmp_path / "run", STEPS)
    assert verdict.line == "PARITY PASS"
    fingerprint = Capture.open(tmp_path / "run" / "v1").manifest["fingerprint"]
    assert fingerprint["gpu"]
    assert fingerprint["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_run_repeats_bit_by_bit(cluster, tmp_path):  # noqa: ARG001
    sides = []
    for number in range(2):
        folder = tmp_path / str(number)
        config = for_parity(load_config("tiny", BASE).config, "v1", STEPS, folder)
        sides.append(capture_run(TRAINERS["v1"], config, folder))
    assert compare(*sides).line == "PARITY PASS"


def test_the_switches_are_set_where_a_run_is_deterministic():
    config = for_parity(load_config("tiny", BASE).config, "v1", STEPS, Path("unused"))
    assert device_of(config).type == "cuda"
    try:
        compute_repeatably(config)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.use_deterministic_algorithms(False)
