"""Paths of configs made local: plain paths, ``file://``, and the generated ``tiny://`` model and task."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from runtime.errors import DataError

# How to make each tiny:// item: its query keys with their defaults, all integers.
_TINY_ITEMS = {"model": {"seed": 0}, "task": {"rows": 64, "seed": 0}}


def copy_to_local(uri: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None) -> str:
    """Return the local path of ``uri``, as ``verl.utils.fs.copy_to_local`` does.

    uri: a path (``~`` is expanded), ``file:///path``, ``tiny://model?seed=0`` (a two-layer Llama with its tokenizer) or
    ``tiny://task?rows=64&seed=0`` (a parquet file of the toy task); tiny items are made once and kept in ``cache_dir``,
    by default ``$VERLIFT_CACHE`` or ``~/.cache/verlift``.

    Raises DataError when the path does not exist or the scheme is one that is not read.
    """
    text = os.fspath(uri)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _existing(Path(text).expanduser(), text)
    if scheme == "file":
        return _existing(Path(unquote(urlsplit(text).path)), text)
    if scheme == "tiny":
        return str(_tiny(text, Path(cache_dir).expanduser() if cache_dir else cache_root()))
    raise DataError(
        f"cannot read {text!r}: the scheme {scheme}:// is not supported; copy {rest!r} to a local disk first "
        "and give its path"
    )


def local_model(uri: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None) -> str:
    """Return the local folder of a model: what :func:`copy_to_local` reads, or a Hugging Face hub id like ``org/name``.

    A local path wins over a hub id of the same spelling. Raises DataError when neither can be had.
    """
    text = os.fspath(uri)
    is_hub_id = "://" not in text and text.count("/") == 1 and not text.startswith((".", "/", "~"))
    if not is_hub_id or Path(text).exists():
        return copy_to_local(text, cache_dir)
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(text)
    except Exception as error:  # the hub client raises a dozen unrelated types; each means "not to be had"
        raise DataError(
            f"model {text!r} is not a folder here and the Hugging Face hub did not give it "
            f"({type(error).__name__}: {error}); "
            "give the path of a model folder, or make one with `verlift data smollm2 --out models/smollm2`"
        ) from error


def cache_root() -> Path:
    """The folder that keeps generated items: ``$VERLIFT_CACHE``, or ``~/.cache/verlift``."""
    return Path(os.environ.get("VERLIFT_CACHE") or "~/.cache/verlift").expanduser()


def make_once(target: Path, make: Callable[[Path], None]) -> Path:
    """Let ``make(path)`` write a file or folder at a path beside ``target``, then rename it to ``target``.

    Nothing is done when ``target`` is there. Two processes at once each make their own; one wins whole, so a reader
    never sees half of it.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as workshop:
        made = Path(workshop) / target.name
        make(made)
        try:
            made.rename(target)
        except OSError:  # a folder is never renamed onto one that has content: another process was first
            if not target.exists():
                raise
    return target


def _existing(path: Path, text: str) -> str:
    if not path.exists():
        raise DataError(f"no file or folder {text!r} (looked for {path.absolute()})")
    return str(path)


def _tiny(text: str, cache: Path) -> Path:
    parts = urlsplit(text)
    item = parts.netloc
    if item not in _TINY_ITEMS or parts.path.strip("/"):
        raise DataError(f"{text!r} is not known: expected tiny://model?seed=0 or tiny://task?rows=64&seed=0")
    numbers = _TINY_ITEMS[item] | _tiny_query(text, item, parts.query)
    # transformers and datasets take seconds to import, so a run that needs no tiny item does not pay for them.
    from runtime import tiny

    name = "-".join([item, *(f"{key}{value}" for key, value in numbers.items()), f"v{tiny.VERSION}"])
    if item == "model":
        return make_once(cache / "tiny" / name, lambda folder: tiny.save_model(folder, seed=numbers["seed"]))
    target = cache / "tiny" / f"{name}.parquet"
    return make_once(target, lambda file: tiny.save_task(file, rows=numbers["rows"], seed=numbers["seed"]))


def _tiny_query(text: str, item: str, query: str) -> dict[str, int]:
    known = _TINY_ITEMS[item]
    given = dict(parse_qsl(query, keep_blank_values=True))
    bad = {key: value for key, value in given.items() if key not in known or not value.isdecimal()}
    if bad:
        raise DataError(f"{text!r}: cannot use {bad}; known keys are {sorted(known)}, each a whole number")
    return {key: int(value) for key, value in given.items()}
