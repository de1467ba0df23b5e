"""``verl.utils.fs`` and ``verl.utils.hdfs_io``: local paths; HDFS is refused by name."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

from compat.utils.errors import UnsupportedPathError
from runtime import fs

HDFS = "hdfs://"


def copy_to_local(
    src: str,
    cache_dir: str | None = None,
    filelock: str = ".file.lock",  # noqa: ARG001  (nothing is shared that a lock would guard)
    verbose: bool = False,  # noqa: ARG001
    always_recopy: bool = False,  # noqa: ARG001
    use_shm: bool = False,
) -> str:
    """The local path of ``src``: a path or hub name comes back as it is, ``tiny://`` is made.

    use_shm: copy into memory (``/dev/shm``) once, and return the path there.
    Raises ``UnsupportedPathError`` for ``hdfs://``.
    """
    _refuse_hdfs(src)
    local = src if "://" not in src else fs.copy_to_local(src, cache_dir)
    return copy_to_shm(local) if use_shm and os.path.exists(local) else local


def copy_local_path_from_hdfs(
    src: str,
    cache_dir: str | None = None,
    filelock: str = ".file.lock",
    verbose: bool = False,
    always_recopy: bool = False,
) -> str:
    """The older name of :func:`copy_to_local`."""
    return copy_to_local(src, cache_dir, filelock, verbose, always_recopy)


def copy_to_shm(src: str) -> str:
    """Copy a file or folder into ``/dev/shm``, once for each path, and return where it is."""
    source = Path(src).absolute()
    target = Path("/dev/shm/verlift") / hashlib.sha256(str(source).encode()).hexdigest()[:16] / source.name
    return str(fs.make_once(target, lambda made: _copy_all(source, made)))


def _copy_all(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


def local_mkdir_safe(path: str) -> str:
    """Make a folder that other processes may be making too; the absolute path."""
    absolute = os.path.abspath(path)
    os.makedirs(absolute, exist_ok=True)
    return absolute


def is_non_local(path: str) -> bool:
    """Whether ``path`` is on HDFS."""
    return path.startswith(HDFS)


def exists(path: str, **_: Any) -> bool:
    """``os.path.exists``. Raises ``UnsupportedPathError`` for ``hdfs://``, as all below."""
    _refuse_hdfs(path)
    return os.path.exists(path)


def makedirs(name: str, mode: int = 0o777, exist_ok: bool = False, **_: Any) -> None:
    """``os.makedirs``."""
    _refuse_hdfs(name)
    os.makedirs(name, mode=mode, exist_ok=exist_ok)


def copy(src: str, dst: str, **kwargs: Any) -> str:
    """``shutil.copy`` of a file or ``shutil.copytree`` of a folder; the path of the copy."""
    _refuse_hdfs(src)
    _refuse_hdfs(dst)
    return shutil.copytree(src, dst, **kwargs) if os.path.isdir(src) else shutil.copy(src, dst, **kwargs)


def _refuse_hdfs(path: str) -> None:
    if is_non_local(path):
        raise UnsupportedPathError(
            f"{path!r} is on HDFS, which is not read or written here: use `hdfs dfs -get` or `-put` around the run, "
            "and give a local path"
        )
