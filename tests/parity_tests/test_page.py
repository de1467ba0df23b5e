"""The page of a report, read without a browser: what it tells, in which order, and that it runs and loads nothing."""

import dataclasses
import math
from html.parser import HTMLParser

import pytest

from parity_tests.compare import compare
from parity_tests.report import Report
from parity_tests.reporting import page as page_module
from parity_tests.reporting.excerpt import AFTER, BEFORE
from parity_tests.reporting.page import as_page, dotted
from parity_tests.verdict import Kind, Status, Tolerance, Verdict

VOID = {"meta", "link", "line", "circle", "rect", "path", "polyline"}


class Element(HTMLParser):
    """A tree of elements: tag, attributes, children, and the text in it."""

    def __init__(self, tag="", attributes=()):
        super().__init__()
        self.tag, self.attributes, self.children, self.own = tag, dict(attributes), [], []
        self.open = [self]

    def handle_starttag(self, tag, attrs):
        element = Element(tag, attrs)
        self.open[-1].children.append(element)
        self.open[-1].own.append(element)
        if not (tag in VOID and tag in ("meta", "link")):
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].own.append(data)

    def everything(self):
        yield self
        for child in self.children:
            yield from child.everything()

    def all(self, tag, kind=None):
        found = [element for element in self.everything() if element.tag == tag]
        return [element for element in found if kind is None or kind in element.attributes.get("class", "").split()]

    def id(self, name):
        return next(element for element in self.everything() if element.attributes.get("id") == name)

    @property
    def text(self):
        return " ".join("".join(part if isinstance(part, str) else f" {part.text} " for part in self.own).split())


def parsed(report):
    root = Element()
    root.feed(as_page(report))
    root.close()
    assert len(root.open) == 1, f"not closed: {[element.tag for element in root.open]}"
    return root


@pytest.fixture(scope="module")
def report(hostile):
    return Report.of(compare(*hostile), *hostile)


@pytest.fixture(scope="module")
def page(report):
    return parsed(report)


def test_nothing_on_the_page_can_run_or_load(page):
    """The prompt is a script: it is text here. And were it not, the policy would forbid it."""
    tags = {element.tag for element in page.everything()}
    assert not tags & {"script", "iframe", "object", "embed", "img", "base", "form"}
    for element in page.everything():
        for name, content in element.attributes.items():
            assert not name.startswith("on")
            assert name not in ("src", "srcset", "style")
            assert name != "href" or content.startswith(("#", "data:,"))
    policy = next(meta for meta in page.all("meta") if "http-equiv" in meta.attributes)
    assert "default-src 'none'" in policy.attributes["content"]
    style = page.all("style")[0].text
    assert "url(" not in style
    assert "@import" not in style
    assert "&lt;" not in page.text, "escaped twice"


def test_the_first_divergence_comes_first_with_its_token_as_text(page, report, markup):
    sections = [element.attributes["id"] for element in page.all("section")]
    assert sections == [
        "first-divergence",
        "vacuous",
        "heat-map",
        "histograms",
        "config",
        "environment",
        "fields",
    ]
    section = page.id("first-divergence")
    assert [mark.text for mark in section.all("mark")] == [markup[0]]
    assert "".join(section.all("p", "tokens")[0].text.split()) == (f"{markup}response{markup}").replace(" ", "")
    place = dict(zip((dt.text for dt in section.all("dt")), (dd.text for dd in section.all("dd")), strict=True))
    assert (place["step"], place["stage"], place["field"]) == ("1", "old_log_prob", "entropy")
    assert (place["response token"], place["dataset row"], place["key"]) == ("0", "43", report.verdict.first.key)
    assert place["values that differ"] == f"{len(markup)} of {2 * len(markup)}"
    assert [value.text.replace(" ", "") for value in section.all("div", "value")] == ["legacy0.25", "v10.75"]
    assert report.verdict.line in page.all("footer")[0].text


def test_the_heat_map_tells_every_stage_in_words(page):
    cells = {
        cell.all("a")[0].attributes["title"]: cell
        for cell in page.id("heat-map").all("td")
        if cell.children[0].tag == "a"
    }
    assert set(cells) == {"step 1, rollout: equal", "step 1, old_log_prob: diverged, 1 of 4 fields"}
    for title, cell in cells.items():
        assert cell.text in ("= equal", "≠ diverged 1/4")
        assert cell.attributes["class"] in title
        page.id(cell.all("a")[0].attributes["href"].removeprefix("#"))


def test_config_and_environment(page, hostile, markup):
    rows = [[cell.text for cell in (*row.all("th"), *row.all("td"))] for row in page.id("config").all("tr")][1:]
    assert rows == [[f"['config'][\"{markup}\"]", f"{markup} of legacy", f"{markup} of v1"]]
    text = page.id("environment").text
    assert all(str(side.directory) in text for side in hostile)
    assert "torch" in text


def test_every_field_has_a_line(page, report):
    names = [row.all("th")[0].text for table in page.all("table", "fields") for row in table.all("tr")[1:]]
    assert names == ["keys and lengths", *(f.field for f in report.verdict.fields[3:9]), "keys and lengths", "entropy"]
    opened = [
        details.all("summary")[0].text for details in page.all("details", "stage") if "open" in details.attributes
    ]
    assert [text.split()[0] for text in opened] == ["old_log_prob"]


# Other verdicts.


def verdict_of(report, **changes):
    return dataclasses.replace(report.verdict, **changes)


def test_a_run_that_passes(report):
    fields = tuple(f for f in report.verdict.fields if f.status is Status.EQUAL)
    page = parsed(Report(verdict_of(report, fields=fields, vacuous=())))
    assert page.all("h1")[0].text == "✓ Pass: every field is equal to the bit"
    assert [section.attributes["id"] for section in page.all("section")] == ["heat-map", "config", "fields"]


def test_a_run_within_its_tolerance_is_not_called_equal(report):
    fields = tuple(f.left_to(Tolerance(1, 1)) if f.status.failed else f for f in report.verdict.fields)
    page = parsed(Report(verdict_of(report, fields=fields, vacuous=())))
    assert page.all("h1")[0].text == "✓ Pass: every field is within its tolerance"
    assert page.all("rect", "within")


def test_a_run_that_proves_nothing(report):
    page = parsed(Report(verdict_of(report, fields=(), vacuous=("all advantages are zero",))))
    assert "Vacuous" in page.all("h1")[0].text
    assert page.id("vacuous").all("li")[0].text == "all advantages are zero"


def test_a_divergence_of_no_row(report):
    first = report.verdict.fields[0]
    for kind, key, hint in ((Kind.WEIGHTS, None, "belongs to no row"), (Kind.SERIES, "mini-batch:3", "mini-batch:3")):
        field = dataclasses.replace(first, kind=kind, key=key, status=Status.DIVERGED, left="0.5", right=None)
        section = parsed(Report(verdict_of(report, fields=(field,)))).id("first-divergence")
        assert hint in section.text
        assert [value.text for value in section.all("div", "value")] == ["legacy 0.5", "v1 nothing"]
        assert not section.all("mark")


def test_one_capture_alone_is_not_called_the_same(report, hostile):
    """As the reference has it, which is computed and no capture."""
    alone = Report.of(verdict_of(report, labels=("reference", "v1"), metadata={}), None, hostile[1])
    page = parsed(alone)
    assert "one capture alone" in page.id("config").text
    assert [th.text for th in page.id("environment").all("th")][:2] == ["versions", "v1"]


# Drift and histograms.


@pytest.fixture(scope="module")
def drifting(report):
    """60 steps: entropy is off from the third on, further each time, by infinity in step 51; b is missing once."""
    entropy = next(f for f in report.verdict.fields if f.status.failed)
    equal = dataclasses.replace(entropy, status=Status.EQUAL, max_abs=0.0, mean_abs=0.0, histogram=None, size=None)
    fields = []
    for step in range(1, 61):
        off = {"max_abs": math.inf if step == 51 else step * 1e-6, "mean_abs": step * 1e-8}
        fields.append(dataclasses.replace(equal if step < 3 else dataclasses.replace(entropy, **off), step=step))
        status = Status.MISSING if step == 7 else Status.EQUAL
        fields.append(dataclasses.replace(equal, step=step, stage="b", field="record", kind=Kind.RECORD, status=status))
    return Report(Verdict(("baseline", "now"), tuple(fields)))


def test_drift_has_a_point_a_step_that_rises_with_the_distance(drifting):
    largest, mean = parsed(drifting).id("drift").all("svg")[:2]
    for chart in (largest, mean):
        assert len(chart.all("circle")) == 30, "every second of 60 points"
        points = [
            tuple(map(float, point.split(","))) for point in chart.all("polyline")[0].attributes["points"].split()
        ]
        assert len(points) == 60
        assert [x for x, _ in points] == sorted(x for x, _ in points)
        heights = [-y for step, (_, y) in enumerate(points, 1) if step != 51]
        assert heights[0] == heights[1] == min(heights)
        assert heights == sorted(heights)
    assert {"0", "∞"} <= {tick.text for tick in largest.all("text")}
    assert "∞" not in {tick.text for tick in mean.all("text")}
    assert "step 51: inf" in largest.text


def test_a_histogram_adds_the_steps_up(drifting, markup):
    figure = parsed(drifting).id("histograms").all("figure")[0]
    assert "old_log_prob / entropy" in figure.text
    assert f"{58 * len(markup):,} of {2 * 58 * len(markup):,} values differ" in figure.text
    (bar,) = figure.all("rect")
    assert bar.text == f"3.2e-01 to 1.0e+00: {58 * len(markup):,} values"


@pytest.mark.parametrize(("allowed", "decades"), [(1e-3, 3), (1e-300, 20)])
def test_a_histogram_marks_what_its_tolerance_allows(drifting, allowed, decades):
    fields = (dataclasses.replace(field, tolerance=Tolerance(allowed, allowed)) for field in drifting.verdict.fields)
    figure = parsed(Report(Verdict(("baseline", "now"), tuple(fields)))).id("histograms").all("figure")[0]
    (limit,), (bar,) = figure.all("line", "limit"), figure.all("rect")
    assert limit.text == f"largest difference allowed: {allowed:g}"
    assert float(limit.attributes["x1"]) == 0, "the axis begins at the limit, or at the least bin"
    # The bar is the last half of the decade that ends at 1.
    assert float(bar.attributes["x"]) == pytest.approx(300 * (decades - 0.5) / decades, abs=1.1)
    assert f"up to {allowed:g} is allowed" in figure.text


def test_a_field_judged_by_bits_has_no_limit(drifting):
    page = parsed(drifting)
    assert not page.all("line", "limit")
    assert "allowed equal bits alone" in page.text


def test_steps_that_are_alike_share_a_column(drifting):
    page = parsed(drifting)
    assert [th.text for th in page.id("heat-map").all("th")][:6] == [
        "stage",
        "steps 1-2",
        "steps 3-6",
        "step 7",
        "steps 8-60",
        "old_log_prob",
    ]
    assert [cell.text for cell in page.id("heat-map").all("td")[4:]] == [
        "= equal",
        "= equal",
        "∅ missing 1/1",
        "= equal",
    ]
    opened = [details for details in page.id("fields").children if "open" in details.attributes]
    assert [details.all("summary")[0].text.split()[:2] for details in opened] == [["step", "3"]]


def test_a_table_that_a_browser_could_not_show_keeps_what_differs(drifting, monkeypatch):
    monkeypatch.setattr(page_module, "MOST_LINES", 59)
    page = parsed(drifting)
    assert len(page.all("table", "fields")) == 59
    assert len(page.id("fields").all("span", "diverged")) == 58 * 2
    assert "61 more stages are left out" in page.id("fields").text


# Excerpts.


@pytest.fixture
def sides(save, records, synthetic, edit):
    """Responses part at the second token of the row 7; the config names no model."""
    faulty = synthetic()
    batch = faulty[1, "rollout"].batch
    changed = batch["responses"].clone()
    changed[int(batch.responses.offsets[7]) + 1] += 1
    edit(faulty, (1, "rollout"), responses=changed)
    return save("legacy", records), save("v1", faulty)


def test_tokens_that_differ_are_shown_from_both_sides(sides, records):
    report = Report.of(compare(*sides), *sides)
    batch = records[1, "rollout"].batch
    place = int(batch.responses.offsets[7]) + 1
    ids = [[token.id for token in excerpt.tokens if token.marked] for excerpt in report.excerpts]
    assert ids == [[int(batch["responses"][place])], [int(batch["responses"][place]) + 1]]
    assert [excerpt.label for excerpt in report.excerpts] == ["legacy", "v1"]
    masks = [token.generated for token in report.excerpts[0].tokens if token.part == "response"]
    assert masks[:2] == [True, False]
    section = parsed(report).id("first-divergence")
    assert [mark.text for mark in section.all("mark")] == [str(ids[0][0]), str(ids[1][0])]
    assert "The config of the capture names no model" in section.text


def test_an_excerpt_is_cut_around_the_token(hostile, report, monkeypatch):
    monkeypatch.setattr("parity_tests.reporting.excerpt.BEFORE", 3)
    monkeypatch.setattr("parity_tests.reporting.excerpt.AFTER", 2)
    (excerpt,) = Report.of(report.verdict, *hostile).excerpts
    prompt = len(excerpt.tokens) - 3
    assert (prompt, [token.marked for token in excerpt.tokens]) == (3, [False] * 3 + [True, False, False])
    assert excerpt.before + excerpt.after + len(excerpt.tokens) == 2 * (excerpt.before + 3)
    assert BEFORE > AFTER > 0


def test_rows_matched_by_position_show_the_other_name(save, records, synthetic):
    theirs = synthetic(seed_of_uids=1)
    batch = theirs[1, "advantage"].batch
    theirs[1, "advantage"] = dataclasses.replace(
        theirs[1, "advantage"], batch=batch.with_columns({"advantages": batch["advantages"] + 1})
    )
    sides = save("legacy", records), save("v1", theirs)
    report = Report.of(compare(*sides, tolerances={"old_log_prob": Tolerance(9, 9)}), None, sides[1])
    assert report.excerpts == (), "the key is of the side that is no capture"
    both = Report.of(compare(*sides), *sides)
    assert [excerpt.key for excerpt in both.excerpts] == [both.verdict.first.key]


def test_paths_of_words_are_written_with_dots():
    assert dotted("['config']['actor_rollout_ref']['actor']['lr']") == "config.actor_rollout_ref.actor.lr"
    assert dotted("['a']['b c'][0]") == "['a']['b c'][0]"
