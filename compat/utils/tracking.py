"""``verl.utils.tracking`` over ``runtime.tracking``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime import tracking
from runtime.errors import ConfigError

OLD_NAMES = {"tracking": "wandb", "file": "jsonl"}
"""Names of backends that verl has or had, and ours."""


class Tracking:
    """Sends metrics to every backend that is named.

    default_backend: names of ``trainer.logger``; ``file`` is our ``jsonl``. config: stored with the run; files go to
    its ``trainer.default_local_dir``, or to ``checkpoints/PROJECT/EXPERIMENT``.
    Raises ``ConfigError`` for a backend that is unknown or not installed.
    """

    supported_backend: Sequence[str] = (*tracking.BACKENDS, *OLD_NAMES)

    def __init__(
        self,
        project_name: str,
        experiment_name: str,
        default_backend: str | Sequence[str] = "console",
        config: Any = None,
    ) -> None:
        given = [default_backend] if isinstance(default_backend, str) else list(default_backend)
        names = list(dict.fromkeys(OLD_NAMES.get(name, name) for name in given))
        folder = _folder(config, project_name, experiment_name)
        self._tracking = tracking.Tracking(project_name, experiment_name, names, config or {}, folder)
        self.logger = dict(zip(names, self._tracking.backends, strict=True))
        """The backends by name."""

    def log(self, data: Mapping[str, Any], step: int, backend: str | Sequence[str] | None = None) -> None:
        """Record the numbers of ``data``; what is no number is left out. backend: only to these."""
        numbers = {name: number for name, value in data.items() if (number := _number(value)) is not None}
        only = {backend} if isinstance(backend, str) else backend
        for name, target in self.logger.items():
            if only is None or name in only:
                target.log(numbers, int(step))  # not every backend takes a number of numpy's

    def finish(self, exit_code: int = 0) -> None:  # noqa: ARG002  (of W&B's own)
        """Close every backend; a second call does nothing."""
        self.logger.clear()
        self._tracking.finish()

    def __del__(self) -> None:
        if hasattr(self, "_tracking"):
            self.finish()


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _folder(config: Any, project_name: str, experiment_name: str) -> Path:
    trainer: Any = (config.get("trainer", None) if hasattr(config, "get") else None) or {}
    folder = trainer.get("default_local_dir", None)
    return Path(folder or Path("checkpoints") / project_name / experiment_name)


class ValidationGenerationsLogger:
    """Shows samples of a validation where the backend has a place for text: W&B, MLflow, TensorBoard."""

    def __init__(self, project_name: str | None = None, experiment_name: str | None = None) -> None:
        self.project_name, self.experiment_name = project_name, experiment_name

    def log(self, loggers: Iterable[str], samples: Sequence[Sequence[Any]], step: int) -> None:
        """Record ``samples``, each a prompt, an answer and a score. Raises ``ConfigError`` for a missing package."""
        for name in loggers:
            if writer := _SAMPLE_WRITERS.get(OLD_NAMES.get(name, name)):
                writer(self, samples, step)

    def _to_wandb(self, samples: Sequence[Sequence[Any]], step: int) -> None:
        _import("wandb").log({tracking.SAMPLES: tracking.as_wandb_table(samples, step)}, step=step)

    def _to_mlflow(self, samples: Sequence[Sequence[Any]], step: int) -> None:
        _import("mlflow").log_dict(tracking.as_json(samples, step), f"val_step{step}.json")

    def _to_tensorboard(self, samples: Sequence[Sequence[Any]], step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        run = f"{self.project_name}/{self.experiment_name}"
        folder = os.environ.get("TENSORBOARD_DIR") or f"tensorboard_log/{run}"
        with SummaryWriter(folder) as writer:
            writer.add_text(tracking.SAMPLES, tracking.as_text(samples), step)


_SAMPLE_WRITERS = {
    "wandb": ValidationGenerationsLogger._to_wandb,
    "mlflow": ValidationGenerationsLogger._to_mlflow,
    "tensorboard": ValidationGenerationsLogger._to_tensorboard,
}


def _import(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"trainer.logger has {module!r}, which is not installed: pip install {module}") from error
