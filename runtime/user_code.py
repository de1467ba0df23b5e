"""Functions and classes that a user names in the config by file and name."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from runtime.errors import VerliftError

_lock = threading.RLock()


def load_object(path: str | os.PathLike[str], name: str, error: type[VerliftError]) -> Any:
    """Return the object ``name`` of the module at ``path``, as verl's ``load_extern_object`` does.

    path: a Python file (a path or ``file://``), or ``pkg://dotted.module``. A file is executed once in a process,
    whatever the spelling of its path.

    Raises ``error`` naming path and name when the file is missing, fails to run or has no such object.
    """
    module = load_module(path, error)
    try:
        return getattr(module, name)
    except AttributeError:
        public = sorted(key for key in vars(module) if not key.startswith("_"))
        raise error(f"{os.fspath(path)} has no {name!r}; it defines {public}") from None


def load_module(path: str | os.PathLike[str], error: type[VerliftError]) -> ModuleType:
    """Return the module at ``path`` (see :func:`load_object`); raises ``error`` when it cannot be had."""
    text = os.fspath(path)
    try:
        if text.startswith("pkg://"):
            return importlib.import_module(text.removeprefix("pkg://"))
        file = Path(text.removeprefix("file://")).expanduser().resolve()
        if not file.is_file():
            raise error(f"no Python file {text!r} (looked for {file})")
        with _lock:
            return _run_file(file)
    except error:
        raise
    except Exception as problem:  # whatever the user's module raises
        raise error(f"{text} could not be imported: {type(problem).__name__}: {problem}") from problem


def _run_file(file: Path) -> ModuleType:
    name = f"verlift_user_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError("a Python file must end in .py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look a class's module up by name, so it has to be there while the file runs.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
