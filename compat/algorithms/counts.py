"""Denominators of code that runs outside of a mini-batch, as verl counts them: of the rows at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from shared_algos.aggregation import Denominators
from shared_algos.errors import AlgorithmError
from shared_algos.segments import Segments


@dataclass(frozen=True)
class GivenCounts:
    """The keywords behind ``loss_agg_mode`` of verl's ``agg_loss``; ``None`` where the rows at hand are counted."""

    dp_size: int = 1
    batch_num_tokens: float | Tensor | None = None
    global_batch_size: float | Tensor | None = None
    loss_scale_factor: float | None = None

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> GivenCounts:
        """Read verl's ``config.global_batch_info``."""
        names = ("dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor")
        return cls(**{name: info[name] for name in names if info.get(name) is not None})

    def denominators(self, mask: Tensor, segments: Segments, mode: str) -> Denominators:
        """What ``mode`` divides by; the horizon is the width of the padded rows unless a scale factor is given.

        mask: ``[B*R]`` of B rows that are R long each. Raises ``AlgorithmError`` for a ``dp_size`` above 1 without the
        count that ``mode`` divides by.
        """
        by_rows = ("global_batch_size", self.global_batch_size)
        name, given = {"token-mean": ("batch_num_tokens", self.batch_num_tokens), "token-sum": ("", 0)}.get(
            mode, by_rows
        )
        if self.dp_size > 1 and given is None:
            raise AlgorithmError(f"agg_loss with loss_agg_mode={mode!r} and dp_size={self.dp_size} needs {name}")
        width = mask.numel() // max(segments.num_rows, 1)
        counted = Denominators.count(mask, segments, self.loss_scale_factor or width)
        return replace(
            counted,
            tokens=counted.tokens if self.batch_num_tokens is None else self.batch_num_tokens,
            sequences=counted.sequences if self.global_batch_size is None else self.global_batch_size,
        )
