"""Geometry of the page's charts, so that the template only draws: points and ticks in the units of an SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from parity_tests.histogram import BINS_PER_DECADE, HIGHEST, LOWEST, Histogram
from parity_tests.reporting.terminal import number
from parity_tests.verdict import FieldVerdict, Kind, Status, Verdict

MOST_CURVES = 8
MOST_HISTOGRAMS = 12

_WIDTH, _HEIGHT = 520, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 12, 30
_MOST_TICKS = 8
_MOST_SIGNS = 30


@dataclass(frozen=True)
class Tick:
    """A mark on an axis."""

    place: float
    label: str


@dataclass(frozen=True)
class Point:
    """One value of a curve. title: what is told when the pointer rests on it."""

    x: float
    y: float
    title: str


@dataclass(frozen=True)
class Chart:
    """One distance by step, a curve a field; the scale is logarithmic, with 0 below it and infinity above.

    every: of how many points one is drawn as a sign, so that those of a long run do not hide the curve.
    """

    title: str
    width: int
    height: int
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    curves: Sequence[Sequence[Point]]
    every: int


@dataclass(frozen=True)
class Drift:
    """The largest and the mean distance by step. names: of the curves; left_out: fields that differ and have none."""

    names: Sequence[str]
    charts: Sequence[Chart]
    left_out: int


@dataclass(frozen=True)
class Bar:
    """One bin of a histogram."""

    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True)
class HistogramChart:
    """Distances of one field over all steps. name: stage and field; beside: values that no bin holds.

    limit: where the largest distance that its tolerance allows stands; None for a field judged by bits.
    """

    name: str
    status: Status
    differing: int
    size: int
    beside: str
    highest: int
    bars: Sequence[Bar]
    x_ticks: Sequence[Tick]
    limit: Tick | None


def drift_of(verdict: Verdict) -> Drift | None:
    """Curves of the columns and series that differ in any step, those that drift furthest.

    None when none differs, or in one step alone, where there is nothing to drift.
    """
    by_name: dict[str, list[FieldVerdict]] = {}
    for field in verdict.fields:
        if field.kind in (Kind.COLUMN, Kind.SERIES) and field.max_abs is not None and field.mean_abs is not None:
            by_name.setdefault(f"{field.stage} / {field.field}", []).append(field)
    differing = {name: fields for name, fields in by_name.items() if any(field.max_abs for field in fields)}
    if not any(len(fields) > 1 for fields in differing.values()):
        return None
    furthest = sorted(differing, key=lambda name: -max(field.max_abs or 0.0 for field in differing[name]))
    names = [name for name in differing if name in furthest[:MOST_CURVES]]
    charts = []
    for title, distance in (("largest |difference|", "max_abs"), ("mean |difference|", "mean_abs")):
        series = [[(field.step, getattr(field, distance)) for field in differing[name]] for name in names]
        charts.append(_chart(title, series))
    return Drift(names, charts, len(differing) - len(names))


def _chart(title: str, series: Sequence[Sequence[tuple[int, float]]]) -> Chart:
    steps = sorted({step for points in series for step, _ in points})
    heights = _log_scale([value for points in series for _, value in points])
    width, floor = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _BOTTOM

    def x(step: int) -> float:
        share = (step - steps[0]) / (steps[-1] - steps[0]) if len(steps) > 1 else 0.5
        return round(_LEFT + 8 + share * (width - 16), 1)

    def y(value: float) -> float:
        return round(floor - heights(value) * (floor - _TOP), 1)

    return Chart(
        title,
        _WIDTH,
        _HEIGHT,
        x_ticks=[Tick(x(step), str(step)) for step in _thinned(steps)],
        y_ticks=[Tick(y(value), label) for value, label in heights.ticks()],
        curves=[
            [Point(x(step), y(value), f"step {step}: {number(value)}") for step, value in points] for points in series
        ],
        every=math.ceil(len(steps) / _MOST_SIGNS),
    )


@dataclass(frozen=True)
class _LogScale:
    """Heights from 0 to 1 of values on decades ``low`` to ``high``; 0 and infinity have a slot of a decade each."""

    low: int
    high: int
    zero: bool
    infinite: bool

    def __call__(self, value: float) -> float:
        slots = self.high - self.low + self.zero + self.infinite
        if value == 0:
            return 0.0
        if math.isinf(value):
            return 1.0
        return (math.log10(value) - self.low + self.zero) / slots

    def ticks(self) -> Iterator[tuple[float, str]]:
        if self.zero:
            yield 0.0, "0"
        yield from ((10.0**decade, f"1e{decade}") for decade in _thinned(range(self.low, self.high + 1)))
        if self.infinite:
            yield math.inf, "∞"


def _log_scale(values: Iterable[float]) -> _LogScale:
    values = list(values)
    logs = [math.log10(value) for value in values if value and math.isfinite(value)] or [0.0]
    low, high = math.floor(min(logs)), math.ceil(max(logs))
    high += low == high
    return _LogScale(low, high, zero=0.0 in values, infinite=math.inf in values)


def _thinned(values: Sequence[int]) -> list[int]:
    """At most ``_MOST_TICKS`` of them, evenly spaced from the first on."""
    return list(values)[:: max(1, math.ceil(len(values) / _MOST_TICKS))]


_BARS_WIDTH, _BARS_HEIGHT = 300, 84


def histograms_of(verdict: Verdict) -> tuple[list[HistogramChart], int]:
    """One chart a field that differs, over all steps and on one axis, and how many fields have none for want of room.

    The weights of a stage are one field.
    """
    by_name: dict[str, list[FieldVerdict]] = {}
    for field in verdict.fields:
        if field.histogram:
            name = "all" if field.kind is Kind.WEIGHTS else field.field
            by_name.setdefault(f"{field.stage} / {name}", []).append(field)
    shown = dict(list(by_name.items())[:MOST_HISTOGRAMS])
    sums = {name: _sum(fields) for name, fields in shown.items()}
    filled = [bins for total in sums.values() if (bins := total.bins)]
    limits = [math.floor(_bins_from_1(limit)) for fields in shown.values() if (limit := _limit(fields))]
    filled += [range(place, place + 1) for place in limits]
    axis = range(min(bins.start for bins in filled), max(bins.stop for bins in filled)) if filled else range(0)
    axis = _whole_decades(axis)
    return [_histogram(name, fields, sums, axis) for name, fields in shown.items()], len(by_name) - len(shown)


def _limit(fields: Iterable[FieldVerdict]) -> float | None:
    """The largest distance that the tolerance of a field allows; of the weights of a stage all have one."""
    return next((field.tolerance.max_abs for field in fields if field.tolerance), None)


def _bins_from_1(distance: float) -> float:
    """Where a distance stands among the bins; what is beyond them, at their end."""
    return min(max(math.log10(distance) * BINS_PER_DECADE, LOWEST), HIGHEST)


def _sum(fields: Iterable[FieldVerdict]) -> Histogram:
    return reduce(add, (field.histogram for field in fields if field.histogram))


def _whole_decades(bins: range) -> range:
    step = BINS_PER_DECADE
    return range(bins.start // step * step, -(-bins.stop // step) * step)


def _histogram(name: str, fields: Sequence[FieldVerdict], sums: Mapping[str, Histogram], axis: range) -> HistogramChart:
    total = sums[name]
    highest = max(total.counts, default=0)
    width = _BARS_WIDTH / max(len(axis), 1)
    bars = [
        _bar(total.count(number), highest, number, place * width, width)
        for place, number in enumerate(axis)
        if total.count(number)
    ]
    decades = range(axis.start // BINS_PER_DECADE, axis.stop // BINS_PER_DECADE + 1) if axis else range(0)
    limit = _limit(fields)
    beside = {"infinite": total.infinite, "only the sign of zero": total.zero}
    return HistogramChart(
        name=name,
        status=max((field.status for field in fields), key=lambda status: status.failed),
        differing=total.total,
        size=sum(field.size or 0 for field in fields),
        beside=", ".join(f"{count:,} {what}" for what, count in beside.items() if count),
        highest=highest,
        bars=bars,
        x_ticks=[Tick((d - decades.start) * width * BINS_PER_DECADE, f"1e{d}") for d in _thinned(decades)],
        limit=Tick(round((_bins_from_1(limit) - axis.start) * width, 1), number(limit)) if limit else None,
    )


def _bar(count: int, highest: int, number: int, x: float, width: float) -> Bar:
    # The least bar can be seen beside one of a million.
    height = max(2.0, round(count / highest * _BARS_HEIGHT, 1))
    low, high = (f"{10 ** (edge / BINS_PER_DECADE):.1e}" for edge in (number, number + 1))
    return Bar(
        round(x + 1, 1),
        _BARS_HEIGHT - height,
        round(max(width - 2, 1), 1),
        height,
        f"{low} to {high}: {count:,} values",
    )
