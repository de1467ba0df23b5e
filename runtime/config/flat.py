"""Configs as flat tables of dotted keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(dotted key, value)`` of every leaf; a list or an empty mapping is a leaf.

    >>> dict(flatten({"a": {"b": 1, "c": {}}}))
    {'a.b': 1, 'a.c': {}}
    """
    for name, value in tree.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping) and value:
            yield from flatten(value, key)
        else:
            yield key, value


def raw_leaves(config: DictConfig) -> dict[str, Any]:
    """Leaves of ``config`` with interpolations and ``???`` left as they are written."""
    return dict(flatten(OmegaConf.to_container(config, resolve=False)))  # type: ignore[arg-type]


def prefixes(key: str) -> Iterator[str]:
    """Proper prefixes of a dotted key, the longest first.

    >>> list(prefixes("a.b.c"))
    ['a.b', 'a']
    """
    while "." in key:
        key = key.rpartition(".")[0]
        yield key


def with_groups(keys: Iterable[str]) -> frozenset[str]:
    """``keys`` and every group that one of them lies in."""
    return frozenset(name for key in keys for name in (key, *prefixes(key)))
