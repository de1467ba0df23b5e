"""How a capture lies on disk: plain JSON and safetensors, whole or not there at all. No pickle.

``DIR/manifest.json`` is written last and names every stage file with its sha256, so a run that was killed leaves no
manifest and is never taken for a whole one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from torch import Tensor

from runtime.errors import CaptureError

FORMAT = "verlift-capture"
FORMAT_VERSION = 3
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"

_TEXT_IS_EXACT = (date, time, timedelta, Decimal)
"""Types of parquet columns whose ``str`` says all of a value (a ``datetime`` is a ``date``)."""


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """Give a temporary path in the folder of ``path`` and rename it to ``path`` when the block ends well.

    Raises CaptureError naming ``path`` when the disk refuses (full, read-only, ...); nothing is left behind then.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise CaptureError(f"could not write {path}: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write ``content`` as strict JSON (no NaN literals), beside and renamed."""
    text = json.dumps(content, indent=1, allow_nan=False)
    with written_beside(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; CaptureError names the file when it is missing, truncated or something else."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CaptureError(f"{path} is missing; capture the run again") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CaptureError(f"{path} cannot be read ({error}); capture the run again") from error
    if not isinstance(content, dict):
        raise CaptureError(f"{path} is not a file of a capture: it holds a {type(content).__name__}")
    return content


def file_digest(path: Path) -> str:
    """The sha256 of a file; CaptureError when it is missing."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise CaptureError(f"{path} cannot be read ({error}); capture the run again") from error


def content_digest(content: Mapping[str, Any]) -> str:
    """The sha256 of a JSON object, however its text is indented."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def plain(value: Any, name: str) -> Any:
    """``value`` in the types of strict JSON; a float that is not finite becomes ``{"float": "nan"}``.

    Raises CaptureError naming ``name`` for a type that has no exact plain form: it is never turned into a string,
    because an address or a class name would compare as if it were content.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.generic):
        return plain(value.item(), name)
    if isinstance(value, np.ndarray | Tensor):
        return plain(value.tolist(), name)
    if isinstance(value, bytes):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    if isinstance(value, _TEXT_IS_EXACT):
        return {type(value).__name__: str(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry, name) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry, name) for entry in value]
    raise CaptureError(
        f"{name} holds a {type(value).__name__}, which a capture cannot keep exactly; "
        "turn it into numbers, strings, lists and dicts where it is made, in the dataset or the agent loop"
    )
