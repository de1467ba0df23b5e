"""A golden baseline: what a run computed at one commit, small enough to be checked in, and what later runs make of it.

``DIR/baseline.json`` is written last and names the rest by sha256: the commit, the config by name and by hash, and one
capture a trainer below ``DIR/legacy`` and ``DIR/v1``. Those are captures like any other but for what is large: of such
a column or object the sha256 alone is kept, and of each weight a few values and the root mean square.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from parity_tests.capture import Capture, StageCapture, write_manifest
from parity_tests.compare import compare
from parity_tests.storage import MANIFEST, WEIGHTS, file_digest, read_json, write_json, written_beside
from parity_tests.verdict import Tolerance, Verdict
from parity_tests.weights import read_weights
from runtime.errors import CaptureError

FORMAT = "verlift-golden"
FORMAT_VERSION = 1
BASELINE = "baseline.json"
KEPT_BYTES = 64 * 1024
"""A column larger than this is kept as its sha256: 16,000 float32 tokens a stage, well above what a small run makes."""
_KEPT_TEXT = 256
"""A dataset object with more characters of JSON is kept as its sha256; answers and scores are shorter."""
_SAMPLES = 16
"""Values kept of each weight, evenly spaced; the root mean square stands for the others."""


@dataclass(frozen=True, eq=False)
class Baseline:
    """A finished baseline: its manifest, and the capture of each trainer by name."""

    directory: Path
    manifest: Mapping[str, Any]
    captures: Mapping[str, Capture]

    @classmethod
    def open(cls, directory: Path) -> Baseline:
        """Read a baseline; CaptureError when it is not whole, of another version, or changed since it was written."""
        path = directory / BASELINE
        if not path.exists():
            raise CaptureError(f"{directory} has no {BASELINE}: it is no baseline, or its recording did not end")
        manifest = read_json(path)
        if (manifest.get("format"), manifest.get("version")) != (FORMAT, FORMAT_VERSION):
            raise CaptureError(
                f"{path} is of format {manifest.get('format')!r} version {manifest.get('version')!r}; this verlift "
                f"reads {FORMAT!r} version {FORMAT_VERSION}; record it anew"
            )
        for name, digest in manifest["files"].items():
            if file_digest(directory / name) != digest:
                raise CaptureError(
                    f"{directory / name} does not match the sha256 of {BASELINE}: it was changed, or an update did not "
                    "end; get the former one back from git, or record it anew"
                )
        names = {name.split("/")[0] for name in manifest["files"]}
        return cls(directory, manifest, {name: Capture.open(directory / name) for name in sorted(names)})

    @property
    def summary(self) -> str:
        """One line: what it holds, how large it is and which commit made it."""
        size = sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file())
        git = self.manifest["git"]
        commit = f"commit {git.get('commit')}" + (" with changes" if git.get("changes") else "")
        return f"{self.directory}: {' and '.join(self.captures)}, {size / 1000:.0f} kB, {commit}"


def record(
    captures: Sequence[Capture],
    directory: Path,
    source: Mapping[str, Any] | None = None,
    git: Mapping[str, Any] | None = None,
    kept_bytes: int = KEPT_BYTES,
    update: bool = False,
) -> Baseline:
    """Write the baseline of ``captures``, one a trainer and all of one config, to ``directory``.

    source: how the config is read again (name, path, overrides, steps). git: the commit and what was not committed.
    kept_bytes: a larger column is kept as its sha256. update: replace the baseline that is there; one that was killed
    leaves what ``Baseline.open`` refuses. Raises CaptureError for captures of two configs or of one trainer twice, and
    for a folder with anything but the baseline to update.
    """
    names = [capture.trainer for capture in captures]
    hashes = {config_hash(capture.config) for capture in captures}
    if len(set(names)) != len(names) or len(hashes) != 1:
        raise CaptureError(
            f"a baseline is of one config and holds each trainer once; given are {len(hashes)} configs of "
            + ", ".join(names)
        )
    refuse_content(directory, update)
    for name in {"legacy", "v1"}.difference(names):
        shutil.rmtree(directory / name, ignore_errors=True)
    trimmed = [_trim(capture, directory / capture.trainer, kept_bytes) for capture in captures]
    named = [side.directory / MANIFEST for side in trimmed]
    content = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "config_hash": hashes.pop(),
        "source": dict(source or {}),
        "git": dict(git or {}),
        "kept_bytes": kept_bytes,
        "files": {path.relative_to(directory).as_posix(): file_digest(path) for path in sorted(named)},
    }
    write_json(directory / BASELINE, content)
    return Baseline.open(directory)


def refuse_content(directory: Path, update: bool) -> None:
    """Raise CaptureError unless ``directory`` is new or empty, or holds a baseline and is to be updated."""
    there = directory.exists() and any(directory.iterdir())
    is_baseline = (directory / BASELINE).exists()
    if update and not is_baseline:
        raise CaptureError(f"{directory} has no {BASELINE} to update; record a new baseline with --out")
    if there and not update:
        way_out = f"update it with --update {directory}" if is_baseline else "give a new folder"
        raise CaptureError(f"{directory} is not empty; {way_out}")


def check(baseline: Baseline, capture: Capture, tolerances: Mapping[str, Tolerance] | None = None) -> Verdict:
    """Set a capture against what ``baseline`` holds of the same trainer, with the sides ``baseline`` and ``now``.

    tolerances: as for ``compare``; by default models are judged by bits where the fingerprint is that of the baseline,
    else by the table. The verdict's ``metadata`` tells what changed of the config and the environment.
    Raises CaptureError when the baseline has no capture of this trainer.
    """
    if capture.trainer not in baseline.captures:
        raise CaptureError(
            f"{baseline.directory} holds {', '.join(baseline.captures)}, and the run was made with {capture.trainer}; "
            "record a baseline of both trainers"
        )
    with TemporaryDirectory(prefix="verlift-golden-") as folder:
        # Both sides trimmed by one rule, so that a digest meets a digest and a sampled weight the same sample.
        trimmed = _trim(capture, Path(folder) / capture.trainer, baseline.manifest["kept_bytes"])
        verdict = compare(baseline.captures[capture.trainer], trimmed, tolerances, by_position=False)
    return replace(verdict, labels=("baseline", "now"))


def config_hash(config: Mapping[str, Any]) -> str:
    """The sha256 of a resolved config, without the trainer's switch and the folder that it writes to."""
    trainer = {name: value for name, value in config["trainer"].items() if name != "use_v1"}
    content = {**_portable(config), "trainer": {**trainer, "default_local_dir": ""}}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _portable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Without the folder of one machine that the run wrote to."""
    return {**config, "trainer": {**config["trainer"], "default_local_dir": ""}}


def _trim(capture: Capture, directory: Path, kept_bytes: int) -> Capture:
    """Write what a baseline keeps of ``capture`` to ``directory``; files that an older one left there are removed."""
    (directory / MANIFEST).unlink(missing_ok=True)
    for path in directory.glob("step_*/*"):
        path.unlink()
    for stage in capture.stages():
        _trim_stage(stage, directory, kept_bytes)
    samples = {name: value for weight in read_weights(capture) for name, value in _sampled(*weight)}
    if samples:
        with written_beside(directory / WEIGHTS) as temporary:
            save_file(samples, temporary)
    made_with = capture.manifest
    write_manifest(
        directory, _portable(capture.config), made_with["versions"], made_with["seeds"], made_with["fingerprint"]
    )
    return Capture.open(directory)


def _trim_stage(stage: StageCapture, directory: Path, kept_bytes: int) -> None:
    content = read_json(stage.path)
    path = directory / f"step_{stage.step}" / stage.path.name
    columns = {name: stage.read(name) for name, info in stage.columns.items() if info.stored}
    kept = {name: column for name, column in columns.items() if column.nbytes <= kept_bytes}
    for name, info in content["columns"].items():
        if name not in kept:
            info["stored"] = False
    content["objects"] = {name: [_short(value) for value in values] for name, values in content["objects"].items()}
    if kept:
        with written_beside(path.with_suffix(".safetensors")) as temporary:
            save_file(kept, temporary)
    write_json(path, content)


def _short(value: Any) -> Any:
    text = json.dumps(value)
    return value if len(text) <= _KEPT_TEXT else {"sha256": hashlib.sha256(text.encode()).hexdigest()}


def _sampled(name: str, weight: Tensor) -> list[tuple[str, Tensor]]:
    """Evenly spaced values of a weight, and the root mean square of all as float64 ``[1]``."""
    values = weight.reshape(-1)
    places = torch.linspace(0, len(values) - 1, min(_SAMPLES, len(values))).long()
    rms = values.double().square().mean().sqrt().reshape(1)
    return [(f"{name} [{len(places)} of {len(values)}]", values[places].contiguous()), (f"{name} [rms]", rms)]
