"""Where metrics go: console, ``metrics.jsonl``, TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from runtime.errors import ConfigError

METRICS_FILE = "metrics.jsonl"

SHOWN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("reward", ("critic/rewards/mean",), ".4f"),
    ("score", ("critic/score/mean",), ".4f"),
    ("length", ("response_length/mean",), ".1f"),
    ("kl to ref", ("actor/kl_loss", "actor/reward_kl_penalty"), ".5f"),
    ("kl to old", ("actor/ppo_kl",), ".5f"),
    ("loss", ("actor/pg_loss",), ".5f"),
    ("value loss", ("critic/vf_loss",), ".5f"),
    ("grad norm", ("actor/grad_norm",), ".4f"),
    ("entropy", ("actor/entropy",), ".4f"),
    ("tokens/s", ("perf/throughput",), ".0f"),
)
"""Columns of the step line: label, the metrics it may be read from (the first that is there), format."""


@dataclass(frozen=True)
class Run:
    """What a backend may want to know of the run."""

    project_name: str
    experiment_name: str
    directory: Path
    config: Mapping[str, Any]
    total_steps: int | None
    """Training steps, for the progress bar; None: unknown."""
    start_step: int
    """The step that a resumed run goes on from; 0: a new run."""


Sample: TypeAlias = Sequence[Any]
"""A prompt, an answer and its score."""

SAMPLES = "val/generations"
"""Where backends show samples, as in verl."""


class Backend(Protocol):
    """One place that metrics go to."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record the metrics of ``step``; a second call for one step adds to it."""

    def finish(self) -> None:
        """Write out what is pending and let go of files and connections."""


class Tracking:
    """Sends each step's metrics to every backend of ``trainer.logger``.

    directory: the run's folder; made if absent. config: stored with the run where a backend has a place for it.
    total_steps, start_step: see ``Run``. Usable as a context manager.
    Raises ``ConfigError`` for a backend that is unknown or not installed.
    """

    def __init__(
        self,
        project_name: str,
        experiment_name: str,
        backends: Sequence[str] | str,
        config: DictConfig | Mapping[str, Any],
        directory: str | Path,
        total_steps: int | None = None,
        start_step: int = 0,
    ) -> None:
        plain = OmegaConf.to_container(config, resolve=True) if isinstance(config, DictConfig) else dict(config)
        folder = Path(directory).expanduser()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"trainer.default_local_dir={str(directory)!r} cannot be made a folder: {error.strerror}; name another"
            ) from error
        run = Run(project_name, experiment_name, folder, plain, total_steps, start_step)  # type: ignore[arg-type]
        names = [backends] if isinstance(backends, str) else list(dict.fromkeys(backends))
        check_backends(names)
        self.backends: list[Backend] = [BACKENDS[name](run) for name in names]

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record ``metrics`` (name: number) of training step ``step``, counted from 1; 0 is before training."""
        plain = {name: float(value) for name, value in metrics.items()}
        for backend in self.backends:
            backend.log(plain, step)

    def log_samples(self, samples: Sequence[Sample], step: int) -> None:
        """Show samples (prompt, answer, score) of a validation where a backend has a place for text."""
        for backend in self.backends:
            if show := getattr(backend, "show", None):
                show(samples, step)

    def finish(self) -> None:
        """Close every backend; later calls do nothing."""
        while self.backends:
            self.backends.pop().finish()

    def __enter__(self) -> Tracking:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()


def check_backends(names: Sequence[str]) -> None:
    """Raise ``ConfigError`` for a name that is no backend."""
    for name in names:
        if name not in BACKENDS:
            raise ConfigError(f"trainer.logger: {name!r} is not one of {', '.join(BACKENDS)}; leave it out")


def step_line(metrics: Mapping[str, float], step: int, total_steps: int | None = None) -> str:
    """One line that a person reads: the columns of ``SHOWN`` that are there, then seconds a stage.

    Metrics of a validation have no such column and are all named.
    """
    parts = [f"step {step}/{total_steps}" if total_steps else f"step {step}"]
    for label, names, form in SHOWN:
        value = next((metrics[name] for name in names if name in metrics), None)
        if value is not None:
            parts.append(f"{label} {value:{form}}")
    parts += [f"{name} {value:.4f}" for name, value in sorted(metrics.items()) if name.startswith("val-")]
    stages = {name.removeprefix("timing_s/"): value for name, value in metrics.items() if name.startswith("timing_s/")}
    if stages:
        parts.append("seconds " + " ".join(f"{stage} {seconds:.2f}" for stage, seconds in stages.items()))
    return "  ".join(parts)


class ConsoleBackend:
    """The step line, under it a progress bar where the output is a terminal; plain lines elsewhere."""

    def __init__(self, run: Run, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.total_steps = run.total_steps
        self.progress: Progress | None = None
        if self.console.is_terminal and run.total_steps:
            columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.progress = Progress(*columns, console=self.console, transient=True)
            self.task = self.progress.add_task("training", total=run.total_steps, completed=run.start_step)
            self.progress.start()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.console.print(step_line(metrics, step, self.total_steps), markup=False, soft_wrap=True)
        if self.progress:
            self.progress.update(self.task, completed=step)

    def finish(self) -> None:
        if self.progress:
            self.progress.stop()


class JsonlBackend:
    """``metrics.jsonl``: one object a step, keys sorted, floats with all their digits, so equal runs give equal files.

    A resumed run keeps the steps up to ``start_step`` and goes on; a new run starts the file anew. JSON has no NaN and
    no infinity: they are written as text.
    """

    def __init__(self, run: Run) -> None:
        path = run.directory / METRICS_FILE
        kept = _lines_up_to(path, run.start_step)
        path.write_bytes(kept)
        self.file: BinaryIO = path.open("r+b")
        self.last: tuple[int, int, dict[str, float]] | None = None
        self.file.seek(len(kept))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        merged, offset = dict(metrics), self.file.tell()
        if self.last and self.last[0] == step:
            offset, merged = self.last[1], {**self.last[2], **merged}
            self.file.seek(offset)
            self.file.truncate()
        row: dict[str, Any] = {name: value if math.isfinite(value) else str(value) for name, value in merged.items()}
        self.file.write(json.dumps({**row, "step": step}, sort_keys=True, allow_nan=False).encode() + b"\n")
        self.file.flush()
        self.last = (step, offset, merged)

    def finish(self) -> None:
        self.file.close()


def _lines_up_to(path: Path, start_step: int) -> bytes:
    """Whole lines of an earlier run that are of steps 0 to ``start_step``; a line cut off by a kill is dropped."""
    if start_step == 0 or not path.exists():
        return b""
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    return b"".join(line for line in lines if json.loads(line)["step"] <= start_step)


class TensorBoardBackend:
    """Scalars under ``tensorboard/`` in the run's folder; a resumed run replaces the steps that it repeats."""

    def __init__(self, run: Run) -> None:
        writer = _installed("torch.utils.tensorboard", "tensorboard", "tensorboard").SummaryWriter
        purge = run.start_step + 1 if run.start_step else None
        self.writer = writer(str(run.directory / "tensorboard"), purge_step=purge)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def show(self, samples: Sequence[Sample], step: int) -> None:
        self.writer.add_text(SAMPLES, as_text(samples), step)

    def finish(self) -> None:
        self.writer.close()


class WandbBackend:
    """Weights & Biases; its own environment variables apply (``WANDB_MODE=offline``, say)."""

    def __init__(self, run: Run) -> None:
        wandb = _installed("wandb", "wandb", "verlift[tracking]")
        self.run = wandb.init(
            project=run.project_name, name=run.experiment_name, config=dict(run.config), dir=str(run.directory)
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.run.log(dict(metrics), step=step)

    def show(self, samples: Sequence[Sample], step: int) -> None:
        self.run.log({SAMPLES: as_wandb_table(samples, step)}, step=step)

    def finish(self) -> None:
        self.run.finish()


class MlflowBackend:
    """MLflow, at ``MLFLOW_TRACKING_URI`` or in ``mlflow.db`` in the run's folder."""

    def __init__(self, run: Run) -> None:
        self.mlflow = _installed("mlflow", "mlflow", "verlift[tracking]")
        if not self.mlflow.is_tracking_uri_set():
            self.mlflow.set_tracking_uri(f"sqlite:///{(run.directory / 'mlflow.db').resolve()}")
        self.mlflow.set_experiment(run.project_name)
        self.mlflow.start_run(run_name=run.experiment_name)
        self.mlflow.log_dict(dict(run.config), "config.json")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.mlflow.log_metrics({name.replace("@", "_at_"): value for name, value in metrics.items()}, step=step)

    def show(self, samples: Sequence[Sample], step: int) -> None:
        self.mlflow.log_dict(as_json(samples, step), f"val_step{step}.json")

    def finish(self) -> None:
        self.mlflow.end_run()


BACKENDS: dict[str, Callable[[Run], Backend]] = {
    "console": ConsoleBackend,
    "jsonl": JsonlBackend,
    "tensorboard": TensorBoardBackend,
    "wandb": WandbBackend,
    "mlflow": MlflowBackend,
}
"""By the names that ``trainer.logger`` takes."""


def as_text(samples: Sequence[Sample]) -> str:
    """Samples as Markdown, a rule between two."""
    return "\n\n---\n\n".join("\n\n".join(str(part) for part in sample[:3]) for sample in samples)


def as_json(samples: Sequence[Sample], step: int) -> dict[str, Any]:
    """Samples as an object of one step."""
    return {"step": step, "samples": [dict(zip(("input", "output", "score"), row, strict=False)) for row in samples]}


def as_wandb_table(samples: Sequence[Sample], step: int) -> Any:
    """Samples as a ``wandb.Table``, a row each."""
    table = _installed("wandb", "wandb", "verlift[tracking]").Table(columns=["step", "input", "output", "score"])
    for sample in samples:
        table.add_data(step, *sample[:3])
    return table


def _installed(module: str, backend: str, requirement: str) -> Any:
    """Import ``module``, or say what to install for ``backend``."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"trainer.logger has {backend!r}, which is not installed: pip install '{requirement}', or leave it out"
        ) from error
