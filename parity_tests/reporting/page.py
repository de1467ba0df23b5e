"""One HTML page that holds everything it shows: no script, no network, light and dark.

Nothing on it can run or load anything: Jinja escapes every value, and a content security policy forbids the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2

from parity_tests.reporting.charts import Drift, HistogramChart, drift_of, histograms_of
from parity_tests.reporting.excerpt import Excerpt
from parity_tests.reporting.model import Line, Report, StageFields, lines_of, stages_of
from parity_tests.reporting.terminal import number
from parity_tests.storage import written_beside
from parity_tests.verdict import FieldVerdict, Status

_TEMPLATES = resources.files("parity_tests") / "reporting" / "templates"

SIGNS: Mapping[Status, str] = {Status.EQUAL: "=", Status.WITHIN: "≈", Status.DIVERGED: "≠", Status.MISSING: "∅"}
"""A sign a status, so that no colour is needed to tell them apart."""

MOST_LINES = 5000
"""Lines of the table of all fields: beyond that a browser stalls, and report.json has them."""

MOST_STEPS = 40
"""Columns of the heat map; of more steps, neighbours that are alike share one."""

_SHORT = 3
"""Steps of a run whose stages are listed at once."""

_LONGEST = 4000
"""Characters of one value of a dataset row."""


@dataclass(frozen=True)
class Column:
    """One step of the heat map, or several that are alike. cells: by stage name; None where it did not run."""

    first: int
    last: int
    cells: Mapping[str, StageFields | None]

    @property
    def name(self) -> str:
        """``3``, or ``3-17``."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True)
class Section:
    """The lines of one stage in the table of all fields."""

    stage: StageFields
    lines: Sequence[Line]


@dataclass(frozen=True)
class Page:
    """What the template asks for."""

    report: Report

    @cached_property
    def first(self) -> FieldVerdict | None:
        """The first divergence."""
        return self.report.verdict.first

    @cached_property
    def stages(self) -> list[StageFields]:
        """The fields by step and stage."""
        return stages_of(self.report.verdict)

    @property
    def steps(self) -> int:
        """How many training steps were compared; the record before training is none."""
        return len({stage.step for stage in self.stages if stage.step > 0})

    @property
    def headline(self) -> str:
        """The verdict in words."""
        if self.first:
            return f"Diverged at step {self.first.step}, stage {self.first.stage}, field {self.first.field}"
        if self.report.verdict.vacuous:
            return "Vacuous: nothing could have gone wrong"
        within = any(field.status is Status.WITHIN for field in self.report.verdict.fields)
        return "Pass: every field is within its tolerance" if within else "Pass: every field is equal to the bit"

    @cached_property
    def tally(self) -> dict[Status, int]:
        """Fields by status, those that occur."""
        counts = dict.fromkeys(Status, 0)
        for field in self.report.verdict.fields:
            counts[field.status] += 1
        return {status: count for status, count in counts.items() if count}

    @property
    def values(self) -> Iterator[tuple[str, str, str]]:
        """(label, what both values begin with, the rest) of the first divergence, a side at a time."""
        if self.first:
            sides = [side if side is not None else "nothing" for side in (self.first.left, self.first.right)]
            unequal = (place for place, (one, other) in enumerate(zip(*sides, strict=False)) if one != other)
            common = next(unequal, min(map(len, sides)))
            for label, side in zip(self.report.verdict.labels, sides, strict=True):
                yield label, side[:common], side[common:]

    @property
    def part(self) -> str:
        """``response token`` or ``prompt token``, as the excerpt knows it."""
        marked = [token.part for excerpt in self.report.excerpts for token in excerpt.tokens if token.marked]
        return f"{marked[0]} token" if marked else "token"

    @cached_property
    def stage_names(self) -> list[str]:
        """Rows of the heat map."""
        return list(dict.fromkeys(stage.stage for stage in self.stages))

    @cached_property
    def columns(self) -> list[Column]:
        """Columns of the heat map."""
        found = {(stage.step, stage.stage): stage for stage in self.stages}
        columns = [
            Column(step, step, {name: found.get((step, name)) for name in self.stage_names})
            for step in sorted({stage.step for stage in self.stages})
        ]
        return columns if len(columns) <= MOST_STEPS else list(_merged(columns))

    @cached_property
    def drift(self) -> Drift | None:
        """Curves of distance by step."""
        return drift_of(self.report.verdict)

    @cached_property
    def histograms(self) -> tuple[list[HistogramChart], int]:
        """Distances of each field that differs, and how many fields are left out."""
        return histograms_of(self.report.verdict)

    @cached_property
    def sections(self) -> list[Section]:
        """The table of all fields; when there are too many lines, stages that differ go before those that do not."""
        room, kept = MOST_LINES, set()
        for stage in sorted(self.stages, key=lambda stage: stage.status is Status.EQUAL):
            room -= len(list(lines_of(stage)))
            if room < 0:
                break
            kept.add(id(stage))
        return [Section(stage, list(lines_of(stage))) for stage in self.stages if id(stage) in kept]

    def opened(self, step: int) -> bool:
        """Whether the table of all fields shows the stages of ``step`` at first: all of a short run, else the first
        step that diverged."""
        return self.steps <= _SHORT or (self.first is not None and self.first.step == step)

    @property
    def environment(self) -> Iterator[tuple[str, list[tuple[str, list[str]]]]]:
        """(heading, rows of a name and one value a side) of what the runs were made with."""
        for heading, groups in (("versions", ["versions"]), ("fingerprint and seeds", ["fingerprint", "seeds"])):
            rows = [("capture", [side.capture for side in self.report.sides])] if "seeds" in groups else []
            for group in groups:
                values: list[Mapping[str, Any]] = [getattr(side, group) for side in self.report.sides]
                prefix = "seed of " if group == "seeds" else ""
                names = dict.fromkeys(name for side in values for name in side)
                rows += [(prefix + name, [str(side.get(name, "")) for side in values]) for name in names]
            yield heading, rows

    @property
    def config(self) -> list[tuple[str, Any, Any]]:
        """(path, left, right) of what differs in config, versions, seeds and fingerprint."""
        return [(dotted(path), *sides) for path, sides in self.report.verdict.metadata.items()]


def write_page(report: Report, path: Path) -> None:
    """Write the page, beside and renamed."""
    page = as_page(report)
    with written_beside(path) as temporary:
        # A lone surrogate, which JSON can hold, has no UTF-8.
        temporary.write_text(page, encoding="utf-8", errors="replace")


def as_page(report: Report) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (_TEMPLATES / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "value": value, "slug": slug, "object": _row_object}
    # The style sheet is ours and holds no value of a report.
    style = (_TEMPLATES / "page.css").read_text(encoding="utf-8")
    template = environment.get_template("page.html.jinja")
    return template.render(page=Page(report), report=report, verdict=report.verdict, style=style, signs=SIGNS)


def dotted(path: str) -> str:
    """``['config']['trainer']['seed']`` as ``config.trainer.seed``; a path with other names than words as it is."""
    return path[2:-2].replace("']['", ".") if re.fullmatch(r"(\['[\w-]+'\])+", path) else path


def value(content: Any) -> str:
    """A value of a config or a dataset as JSON, cut where it is very long."""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"


def slug(stage: StageFields) -> str:
    """The anchor of a stage's lines."""
    return f"step-{stage.step}-" + re.sub(r"[^\w-]", "_", stage.stage)


def _row_object(excerpt: Excerpt) -> Iterable[tuple[str, str]]:
    return [(name, value(content)) for name, content in sorted(excerpt.row.items())]


def _merged(columns: Sequence[Column]) -> Iterator[Column]:
    def statuses(column: Column) -> list[Status | None]:
        return [cell.status if cell else None for cell in column.cells.values()]

    for _, alike in groupby(columns, key=statuses):
        group = list(alike)
        yield Column(group[0].first, group[-1].last, group[0].cells)
