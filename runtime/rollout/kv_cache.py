"""A KV cache whose length moves in steps of one bucket, so that attention sees few shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import Cache, CacheLayerMixin

BUCKET = 64
"""Tokens a bucket. On a CPU, attention over lengths that are no multiple of it changes the bits of a row (measured)."""


def bucketed(length: int) -> int:
    """The smallest multiple of ``BUCKET`` that is at least ``length``."""
    return -(-length // BUCKET) * BUCKET


class BucketedLayer(CacheLayerMixin):
    """Keys and values of one layer, ``[N, heads, bucketed(length), D]``; slots from ``length`` on are 0 and masked."""

    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = key_states[:, :, :0]
        self.values = value_states[:, :, :0]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        self.keys = _write(self.keys, key_states, self.length, end)
        self.values = _write(self.values, value_states, self.length, end)
        self.length = end
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return bucketed(self.length + query_length), 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


class BucketedCache(Cache):
    """The layers of one batch, made as the model first writes to them."""

    layers: list[BucketedLayer]  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=BucketedLayer)

    @property
    def length(self) -> int:
        """Slots in use, the same in every layer."""
        return self.layers[0].length if self.layers else 0

    @classmethod
    def merge(cls, caches: Sequence[BucketedCache]) -> BucketedCache:
        """The rows of all ``caches``, each of a whole number of buckets; shorter ones get whole buckets before them.

        Whole buckets, because they leave the bits of attention alone (measured) where another shift would not.
        """
        if len(caches) == 1:
            return caches[0]
        merged = cls()
        length = max(cache.length for cache in caches)
        for layers in zip(*(cache.layers for cache in caches), strict=True):
            keys = torch.cat([pad(layer.keys, (0, 0, length - layer.length, 0)) for layer in layers])
            values = torch.cat([pad(layer.values, (0, 0, length - layer.length, 0)) for layer in layers])
            merged.update(keys, values, len(merged.layers))
        return merged

    def select(self, rows: Tensor) -> None:
        """Keep ``rows`` int64 ``[N']``, in that order."""
        for layer in self.layers:
            layer.keys = layer.keys[rows]
            layer.values = layer.values[rows]


def _write(slots: Tensor, states: Tensor, start: int, end: int) -> Tensor:
    if end > slots.shape[-2]:
        grown = states.new_zeros(*states.shape[:2], bucketed(end), states.shape[-1])
        grown[:, :, :start] = slots[:, :, :start]
        slots = grown
    slots[:, :, start:end] = states
    return slots
