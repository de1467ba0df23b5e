"""Run both trainers from the same weights and data, one after the other in one Ray, and compare what they did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from legacy.trainer import LegacyTrainer
from parity_tests.capture import Capture, CaptureHook, machine_fingerprint, package_versions, write_manifest
from parity_tests.compare import compare
from parity_tests.storage import WEIGHTS
from parity_tests.verdict import Verdict
from runtime.config import num_ranks
from runtime.trainer.base import Trainer
from runtime.workers.model_workers import torch_threads
from v1.trainer import V1Trainer

TRAINERS: Mapping[str, type[Trainer]] = {"legacy": LegacyTrainer, "v1": V1Trainer}
DEFAULT_STEPS = 2


def run_parity(
    config: DictConfig,
    directory: Path,
    steps: int | None = None,
    export_weights: bool = True,
    trainers: Mapping[str, type[Trainer]] = TRAINERS,
) -> Verdict:
    """Capture ``steps`` training steps of each trainer below ``directory`` and compare the captures.

    steps: ``trainer.total_training_steps``, or 2 when that is null. export_weights: also write and compare the weights
    after the last step, so that a difference of weights is measured and not only noticed. trainers: the class of the
    ``legacy`` and of the ``v1`` side; both must be there.
    Raises CaptureError when ``directory`` holds an earlier capture.
    """
    steps = steps or config.trainer.total_training_steps or DEFAULT_STEPS
    legacy, v1 = (
        capture_run(trainers[name], for_parity(config, name, steps, directory / name), directory / name, export_weights)
        for name in TRAINERS
    )
    return compare(legacy, v1, by_position=False)


def for_parity(config: DictConfig, name: str, steps: int, directory: Path) -> DictConfig:
    """The config of one side: deterministic batches of requests, no validation, everything else as it is."""
    changes: dict[str, Any] = {
        "trainer": {
            "use_v1": name == "v1",
            "total_training_steps": steps,
            "val_before_train": False,
            "test_freq": -1,
            "default_local_dir": str(directory / "run"),
            "logger": [backend for backend in config.trainer.logger if backend in ("console", "jsonl")],
        },
        "actor_rollout_ref": {"rollout": {"deterministic": True}},
    }
    changed = OmegaConf.merge(config, changes)
    OmegaConf.set_readonly(changed, True)
    return changed  # type: ignore[return-value]


def capture_run(
    trainer_class: Callable[..., Trainer], config: DictConfig, directory: Path, export_weights: bool = True
) -> Capture:
    """Train with what ``trainer_class`` makes of (config, hooks), its every stage captured in ``directory``."""
    trainer = trainer_class(config, hooks=[CaptureHook(directory)])
    try:
        trainer.fit()
        if export_weights:
            trainer.export_weights(str(directory / WEIGHTS))
    finally:
        trainer.close()
    return finish_capture(config, directory)


def finish_capture(config: DictConfig, directory: Path) -> Capture:
    """Write the manifest of a run with ``config`` that has ended, and open its capture."""
    write_manifest(
        directory,
        config=OmegaConf.to_container(config, resolve=True),  # type: ignore[arg-type]
        versions=package_versions(),
        seeds={"global": config.runtime.seed},
        fingerprint={
            **machine_fingerprint(),
            "ranks": str(num_ranks(config)),
            "threads of a rank": str(torch_threads(config)),
        },
    )
    return Capture.open(directory)
