"""``verl.utils.metric``: metrics collected over micro-batches and ranks, then made one number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch

from compat.utils.errors import MetricError

Numeric = int | float | torch.Tensor | np.ndarray


class AggregationType(Enum):
    """How values become one."""

    MEAN = "mean"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


_AGGREGATE: dict[AggregationType, Callable[[Any], Any]] = {
    AggregationType.MEAN: np.mean,
    AggregationType.SUM: np.sum,
    AggregationType.MIN: np.min,
    AggregationType.MAX: np.max,
}


class Metric:
    """Values of one metric and how they are aggregated.

    aggregation: ``mean``, ``sum``, ``min`` or ``max``. value: a first number or list of them.
    """

    def __init__(self, aggregation: str | AggregationType, value: Numeric | Iterable[Numeric] | None = None) -> None:
        try:
            self.aggregation = AggregationType(aggregation)
        except ValueError:
            names = ", ".join(kind.value for kind in AggregationType)
            raise MetricError(f"a metric is aggregated by {names}, not by {aggregation!r}") from None
        self.values: list[float] = []
        if isinstance(value, list | tuple):
            self.extend(value)
        elif value is not None:
            self.append(value)  # type: ignore[arg-type]

    def append(self, value: Numeric | Metric) -> None:
        """Add a number, a tensor of one element, or all values of another metric."""
        if isinstance(value, Metric):
            self.extend(value)
            return
        if isinstance(value, torch.Tensor | np.ndarray):
            if (value.numel() if isinstance(value, torch.Tensor) else value.size) != 1:
                raise MetricError(f"a metric takes one number at a time, got a tensor of shape {tuple(value.shape)}")
            value = value.item()
        if not isinstance(value, int | float | np.number):
            raise MetricError(f"a metric takes numbers, got {type(value).__name__}: {value!r}")
        self.values.append(value)

    def extend(self, values: Metric | Iterable[Numeric]) -> None:
        """Add several numbers, or those of a metric of the same aggregation."""
        if isinstance(values, Metric):
            if values.aggregation is not self.aggregation:
                raise MetricError(
                    f"a metric aggregated by {self.aggregation.value} cannot take one by {values.aggregation.value}"
                )
            values = values.values
        for value in values:
            self.append(value)

    def aggregate(self) -> float:
        """The values made one."""
        return _AGGREGATE[self.aggregation](self.values)

    @classmethod
    def aggregate_dp(cls, metric_lists: Sequence[Metric]) -> float:
        """One number of what each rank collected: sums and means are averaged over ranks, value by value."""
        lengths = [len(metric.values) for metric in metric_lists]
        if not lengths or len(set(lengths)) > 1:
            raise MetricError(f"ranks must have equally many values of a metric, at least one rank; got {lengths}")
        by_rank = np.array([metric.values for metric in metric_lists])
        aggregation = metric_lists[0].aggregation
        if aggregation in (AggregationType.SUM, AggregationType.MEAN):
            by_rank = by_rank.mean(axis=0)
        return _AGGREGATE[aggregation](by_rank)

    @classmethod
    def from_dict(cls, data: dict[str, Numeric], aggregation: str | AggregationType) -> dict[str, Metric]:
        """A metric for each number."""
        return {name: cls(aggregation, value) for name, value in data.items()}

    def init_list(self) -> Metric:
        """An empty metric of the same aggregation."""
        return Metric(self.aggregation)


def reduce_metrics(metrics: dict[str, Any]) -> dict[str, Any]:
    """Each list made one number in place: its maximum where the name has ``max``, minimum for ``min``, else the mean.

    A ``Metric`` aggregates as it says itself.
    """
    for name, values in metrics.items():
        if isinstance(values, Metric):
            metrics[name] = values.aggregate()
        else:
            metrics[name] = (np.max if "max" in name else np.min if "min" in name else np.mean)(values)
    return metrics
