"""Write what each stage of a run produced, and read it back stage by stage.

``step_N/STAGE.safetensors`` holds the packed columns; ``step_N/STAGE.json`` holds keys in canonical order, lengths,
dtype, level and sha256 of each column, dataset objects, series and weight digests. See ``storage`` for the rest.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from parity_tests.columns import pieces_of, read_ranges, row_pieces
from parity_tests.storage import (
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
    WEIGHTS,
    content_digest,
    file_digest,
    plain,
    read_json,
    write_json,
    written_beside,
)
from runtime.digests import TensorDigest, tensor_digest
from runtime.errors import CaptureError
from runtime.fields import STAGE_NAMES, Level
from runtime.identity import TrajectoryKey
from runtime.trainer.hooks import INITIAL_STAGE, StageRecord
from runtime.trajectories import TrajectoryBatch, level_of
from shared_algos.segments import Segments

STAGE_ORDER = (INITIAL_STAGE, *STAGE_NAMES)
VERSIONED_PACKAGES = ("verlift", "torch", "transformers", "tensordict", "TransferQueue", "ray", "numpy", "safetensors")


class CaptureHook:
    """A ``StageHook`` that writes each record below ``directory``; it holds only the path, so it travels to workers.

    directory: empty or not there yet. Raises CaptureError when it cannot be made, or has content: two runs are never
    mixed.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory).absolute()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            taken = any(self.directory.iterdir())
        except OSError as error:
            raise CaptureError(
                f"could not write {self.directory}: {error}; give a directory that can be made"
            ) from error
        if taken:
            raise CaptureError(f"{self.directory} is not empty; give a new directory for the capture, or remove it")

    def __call__(self, record: StageRecord) -> None:
        """Write one record; CaptureError when this stage of this step is already there."""
        path = _stage_path(self.directory, record.step, record.stage)
        if path.exists():
            raise CaptureError(
                f"{path} is already there: stage {record.stage!r} of step {record.step} was recorded twice"
            )
        if record.batch is not None and record.batch.columns:
            _write_columns(path.with_suffix(".safetensors"), record.batch)
        # The JSON file goes last: a stage that has one is whole.
        write_json(path, _describe(record))


def write_manifest(
    directory: str | os.PathLike[str],
    config: Mapping[str, Any],
    versions: Mapping[str, str],
    seeds: Mapping[str, int],
    fingerprint: Mapping[str, str],
) -> None:
    """Close a capture: name its files with their sha256, and what the run was made with.

    Exported weights must be there before.

    config: the resolved config as plain dicts. seeds: by purpose (``data``, ``rollout``, ...). fingerprint: what model
    results may depend on, see ``machine_fingerprint``.
    """
    root = Path(directory)
    files = {path.relative_to(root).as_posix(): file_digest(path) for path in sorted(root.glob("step_*/*.json"))}
    weights = file_digest(root / WEIGHTS) if (root / WEIGHTS).exists() else None
    content: dict[str, Any] = {"format": FORMAT, "version": FORMAT_VERSION, "files": files, "weights": weights}
    made_with = {"config": config, "versions": versions, "seeds": seeds, "fingerprint": fingerprint}
    content |= plain(made_with, "the manifest")
    write_json(root / MANIFEST, content | {"sha256": content_digest(content)})


def machine_fingerprint() -> dict[str, str]:
    """What the bits of a model's results depend on beside its inputs: two equal fingerprints promise equal bits."""
    return {
        "machine": platform.machine(),
        "cpu_isa": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "MKL_CBWR": os.environ.get("MKL_CBWR", ""),
        **_gpu_fingerprint(),
    }


def _gpu_fingerprint() -> dict[str, str]:
    """The GPU, the libraries that compute on it, and the switch that cuBLAS reads; empty where there is none."""
    if not torch.cuda.is_available():
        return {"gpu": "", "cuda": torch.version.cuda or ""}
    return {
        "gpu": torch.cuda.get_device_name(),
        "gpus": str(torch.cuda.device_count()),
        "cuda": torch.version.cuda or "",
        "cudnn": str(torch.backends.cudnn.version()),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
    }


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that a run stands on; absent ones are left out."""
    found = {"python": platform.python_version()}
    for name in VERSIONED_PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class ColumnInfo:
    """What the JSON file says of one packed column; dtype as safetensors names it for torch, such as ``float32``.

    stored: whether its values are on disk; a golden baseline keeps of a large column the sha256 alone.
    """

    dtype: str
    shape: tuple[int, ...]
    level: Level
    sha256: str
    stored: bool = True


@dataclass(frozen=True, eq=False)
class StageCapture:
    """One stage of one step; columns are read from disk when asked for.

    keys: B, one a row. prompts, responses: rows among prompt and response tokens, ``[B+1]`` each.
    objects: dataset objects by name, B plain values each.
    """

    path: Path
    step: int
    stage: str
    keys: tuple[TrajectoryKey, ...]
    prompts: Segments
    responses: Segments
    columns: Mapping[str, ColumnInfo]
    objects: Mapping[str, list[Any]]
    series: Mapping[str, tuple[float, ...]]
    digests: Mapping[str, str]

    @property
    def file(self) -> Path:
        """Where the columns are."""
        return self.path.with_suffix(".safetensors")

    def read(self, name: str) -> Tensor:
        """The packed column ``name``, whole; CaptureError as for ``pieces``."""
        return torch.cat(list(self.pieces(name)))

    def pieces(self, name: str) -> Iterator[Tensor]:
        """The packed column ``name`` in order, one piece of bounded size in memory at a time.

        CaptureError, at the latest after the last piece, when the file is truncated or does not hash to what was
        written; at once when only the sha256 was stored.
        """
        info, digest, dtype, entries = self.columns[name], TensorDigest(), "", 0
        if not info.stored:
            raise CaptureError(f"{self.path}: of column {name!r} only the sha256 was kept; it has no values to read")
        for piece in pieces_of(self.file, name):
            digest.update(piece)
            dtype, entries = _dtype_name(piece), entries + len(piece)
            yield piece
        if (dtype, (entries, *piece.shape[1:]), digest.hexdigest()) != (info.dtype, info.shape, info.sha256):
            raise CaptureError(
                f"{self.file}: column {name!r} does not match the sha256 of {self.path.name}; capture again"
            )

    def check(self, name: str) -> None:
        """Read a column to its end; CaptureError as for ``pieces``."""
        for _ in self.pieces(name):
            pass

    def row_sums(self, name: str) -> Tensor:
        """Totals of a one-dimensional column by row, float64 ``[B]``, as ``Segments.sum`` adds; read by pieces."""
        lengths = self.lengths(self.columns[name].level)
        starts = lengths.cumsum(0) - lengths
        sums = [
            Segments.from_lengths(lengths[rows]).sum(self.read_ranges(name, starts[rows], (starts + lengths)[rows]))
            for rows in row_pieces(lengths)
        ]
        return torch.cat([torch.zeros(0, dtype=torch.float64), *sums])

    def read_ranges(self, name: str, starts: Tensor, stops: Tensor) -> Tensor:
        """The slices ``start:stop`` of the packed column ``name``, one after another; what they hold is not checked."""
        return read_ranges(self.file, name, starts.tolist(), stops.tolist())

    def lengths(self, level: Level) -> Tensor:
        """How many values of a column of ``level`` each row has, int64 ``[B]``."""
        if level is Level.ROW:
            return torch.ones(len(self.keys), dtype=torch.int64)
        if level is Level.SEQUENCE:
            return self.prompts.lengths + self.responses.lengths
        return (self.prompts if level is Level.PROMPT else self.responses).lengths


@dataclass(frozen=True, eq=False)
class Capture:
    """A finished capture: its manifest, and the stages it names."""

    directory: Path
    manifest: Mapping[str, Any]

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> Capture:
        """Read the manifest; CaptureError when there is none (the run did not end) or it is of another format."""
        root = Path(directory)
        path = root / MANIFEST
        if not path.exists():
            raise CaptureError(f"{root} has no {MANIFEST}: it is no capture, or its run did not end; capture it again")
        manifest = read_json(path)
        if (manifest.get("format"), manifest.get("version")) != (FORMAT, FORMAT_VERSION):
            raise CaptureError(
                f"{path} is of format {manifest.get('format')!r} version {manifest.get('version')!r}; "
                f"this verlift reads {FORMAT!r} version {FORMAT_VERSION}; capture the run again"
            )
        if manifest.pop("sha256", None) != content_digest(manifest):
            raise CaptureError(f"{path} does not match its own sha256: it was changed after the run; capture it again")
        return cls(root, manifest)

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved config of the run."""
        return self.manifest["config"]

    @property
    def trainer(self) -> str:
        """``v1`` or ``legacy``, after ``trainer.use_v1``; old versions of verl, which have no such key, are legacy."""
        chosen = self.setting("trainer.use_v1")
        return "v1" if (not self.partial if chosen is None else chosen) else "legacy"

    def setting(self, key: str) -> Any:
        """The value of a dotted config key; None where the config does not have it."""
        return setting(self.config, key)

    @property
    def partial(self) -> bool:
        """Whether a recorder made it, which sees what a user hands it and not all that a trainer does."""
        return bool(self.manifest.get("partial", False))

    @cached_property
    def index(self) -> Mapping[int, tuple[str, ...]]:
        """Step -> its stages in the order in which trainers run them; names that are not ours come last."""
        found: dict[int, list[str]] = {}
        for name in self.manifest["files"]:
            folder, file = name.split("/")
            found.setdefault(int(folder.removeprefix("step_")), []).append(file.removesuffix(".json"))
        return {step: tuple(sorted(found[step], key=stage_rank)) for step in sorted(found)}

    def stages(self) -> Iterator[StageCapture]:
        """Every stage in order, one in memory at a time."""
        for step, names in self.index.items():
            for name in names:
                yield self.stage(step, name)

    def stage(self, step: int, name: str) -> StageCapture:
        """One stage; CaptureError naming the file when it is missing, truncated or changed since it was written."""
        path = _stage_path(self.directory, step, name)
        content = read_json(path)
        if file_digest(path) != self.manifest["files"].get(f"step_{step}/{name}.json"):
            raise CaptureError(f"{path} does not match the sha256 of {MANIFEST}: it was changed after the run")
        return _parse(path, content)

    @cached_property
    def weights(self) -> Path | None:
        """The weights that were exported at the end of the run, or None.

        CaptureError when the file is not the one that the manifest vouches for; it is hashed whole, once.
        """
        path, written = self.directory / WEIGHTS, self.manifest.get("weights")
        if written is None and not path.exists():
            return None
        if written is None or file_digest(path) != written:
            raise CaptureError(f"{path} does not match the sha256 of {MANIFEST}: it was changed after the run")
        return path


def setting(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key of any run's config, which may be of another program; None where it has none."""
    node: Any = config
    for name in key.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def stage_rank(name: str) -> tuple[int, str]:
    """A sorting key that puts stages in the order in which trainers run them."""
    return (STAGE_ORDER.index(name) if name in STAGE_ORDER else len(STAGE_ORDER), name)


def _stage_path(directory: Path, step: int, stage: str) -> Path:
    return directory / f"step_{step}" / f"{stage}.json"


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _write_columns(file: Path, batch: TrajectoryBatch) -> None:
    columns: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, column in batch.columns.items():
        values = column.detach().cpu().contiguous()
        # safetensors refuses two columns of one storage (rewards that are the scores, unchanged).
        shared = values.untyped_storage().data_ptr() in storages
        columns[name] = values.clone() if shared else values
        storages.add(values.untyped_storage().data_ptr())
    with written_beside(file) as temporary:
        save_file(columns, temporary)


def _describe(record: StageRecord) -> dict[str, Any]:
    return {
        "step": record.step,
        "stage": record.stage,
        **_describe_batch(record.batch),
        # repr gives the shortest digits that read back to the same float64; strings because JSON has no NaN.
        "series": {name: [repr(float(value)) for value in values] for name, values in record.series.items()},
        "digests": dict(record.digests),
    }


def _describe_batch(batch: TrajectoryBatch | None) -> dict[str, Any]:
    if batch is None:
        return {"keys": [], "prompt_lengths": [], "response_lengths": [], "columns": {}, "objects": {}}
    return {
        "keys": [str(key) for key in batch.keys],
        "prompt_lengths": batch.prompts.lengths.tolist(),
        "response_lengths": batch.responses.lengths.tolist(),
        "columns": {
            name: {
                "dtype": _dtype_name(column),
                "shape": list(column.shape),
                "level": level_of(name).value,
                "sha256": tensor_digest(column),
            }
            for name, column in batch.columns.items()
        },
        "objects": {name: plain(list(values), f"object field {name!r}") for name, values in batch.objects.items()},
    }


def _parse(path: Path, content: Mapping[str, Any]) -> StageCapture:
    try:
        stage = StageCapture(
            path=path,
            step=content["step"],
            stage=content["stage"],
            keys=tuple(TrajectoryKey.parse(key) for key in content["keys"]),
            prompts=Segments.from_lengths(content["prompt_lengths"]),
            responses=Segments.from_lengths(content["response_lengths"]),
            columns={
                name: ColumnInfo(
                    info["dtype"], tuple(info["shape"]), Level(info["level"]), info["sha256"], info.get("stored", True)
                )
                for name, info in content["columns"].items()
            },
            objects=content["objects"],
            series={name: tuple(map(float, values)) for name, values in content["series"].items()},
            digests=content["digests"],
        )
        _check_sizes(stage)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CaptureError(f"{path} is not a stage of a capture ({type(error).__name__}: {error})") from error
    return stage


def _check_sizes(stage: StageCapture) -> None:
    """ValueError unless everything has the length that keys and lengths ask for."""
    rows = len(stage.keys)
    sizes = {"prompt_lengths": stage.prompts.num_rows, "response_lengths": stage.responses.num_rows}
    sizes |= {f"objects {name!r}": len(values) for name, values in stage.objects.items()}
    expected = dict.fromkeys(sizes, rows)
    for name, info in stage.columns.items():
        sizes[f"column {name!r}"] = info.shape[0]
        expected[f"column {name!r}"] = int(stage.lengths(info.level).sum())
    for name, size in sizes.items():
        if size != expected[name]:
            raise ValueError(f"{name}: {size} values, expected {expected[name]} for {rows} keys")
