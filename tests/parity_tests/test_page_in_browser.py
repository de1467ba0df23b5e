"""The page of a report in headless Chromium, from file://, driven by chromedriver's own protocol: JSON over HTTP."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from parity_tests.compare import compare
from parity_tests.report import Report
from parity_tests.reporting.page import write_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium here: apt-get install chromium chromium-driver"),
    pytest.mark.skipif(not DRIVER, reason="no chromedriver here: apt-get install chromium-driver"),
]

WIDTH, HEIGHT = 1280, 800


class Browser:
    """One session of chromedriver: what a test asks of a page."""

    def __init__(self, port: int) -> None:
        self.root = f"http://127.0.0.1:{port}/session"
        options = {
            "binary": CHROMIUM,
            # A sandbox needs privileges that containers of CI lack; /dev/shm is small there.
            "args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        self.root += "/" + self.post("", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        metrics = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)

    def post(self, path: str, body: dict) -> object:
        request = urllib.request.Request(
            self.root + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def devtools(self, command: str, parameters: dict) -> dict:
        return self.post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, page: Path) -> None:
        self.post("/url", {"url": page.as_uri()})

    def evaluate(self, script: str) -> object:
        return self.post("/execute/sync", {"script": f"return {script}", "args": []})

    def box(self, selector: str) -> dict:
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")

    def console(self) -> list[str]:
        return [entry["message"] for entry in self.post("/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """The address of everything that was asked for since the last call."""
        entries = [json.loads(entry["message"])["message"] for entry in self.post("/se/log", {"type": "performance"})]
        sent = [entry["params"] for entry in entries if entry["method"] == "Network.requestWillBeSent"]
        return [parameters["request"]["url"] for parameters in sent]

    def close(self) -> None:
        urllib.request.urlopen(urllib.request.Request(self.root, method="DELETE"), timeout=60)


@pytest.fixture(scope="module")
def browser():
    driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        started = next(match for line in driver.stdout if (match := re.search(r"successfully on port (\d+)", line)))
        session = Browser(int(started[1]))
        yield session
        session.close()
    finally:
        driver.terminate()
        driver.wait()
        driver.stdout.close()


@pytest.fixture(scope="module")
def shown(browser, hostile, tmp_path_factory):
    """The page of a divergence, open, with what was asked for while it loaded."""
    page = tmp_path_factory.mktemp("page") / "report.html"
    write_page(Report.of(compare(*hostile), *hostile), page)
    browser.open(page)
    return browser, page, browser.requests()


def test_the_page_loads_nothing_else_and_raises_nothing(shown):
    browser, page, requests = shown
    assert requests == [page.as_uri()]
    assert browser.console() == []
    assert browser.evaluate("document.scripts.length") == 0, "the prompt is a script, and is text"


def test_the_first_divergence_is_seen_without_scrolling(shown):
    browser, _, _ = shown
    assert browser.evaluate("[innerWidth, innerHeight]") == [WIDTH, HEIGHT]
    for selector in ("h1", "#first-divergence .place", ".value", ".value + .value", ".tokens", "mark"):
        box = browser.box(selector)
        assert box["width"] > 0, selector
        assert 0 <= box["top"] < box["bottom"] <= HEIGHT, f"{selector}: {box}"
        assert 0 <= box["left"] < box["right"] <= WIDTH, f"{selector}: {box}"


def test_nothing_is_wider_than_the_window(shown):
    browser, _, _ = shown
    assert browser.evaluate("document.documentElement.scrollWidth") <= WIDTH


def test_a_cell_of_the_heat_map_opens_the_fields_of_its_stage(shown):
    browser, _, _ = shown
    table = "document.getElementById('step-1-rollout')"
    assert not browser.evaluate(f"{table}.checkVisibility()")
    browser.evaluate("document.querySelector('.heat a').click()")
    assert browser.evaluate(f"{table}.checkVisibility()")


CONTRAST = """(() => {
  const rgb = color => color.match(/[\\d.]+/g).map(Number);
  const light = color => rgb(color).slice(0, 3).map(v => v / 255).map(
    v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4
  ).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = node => {
    const color = getComputedStyle(node).backgroundColor;
    return node.parentElement && (rgb(color)[3] === 0) ? behind(node.parentElement) : color;
  };
  const texts = 'h1, h1 span, .tally, dt, dd, .value b, .tokens span, mark, .badge, .heat td, .hint';
  return [...document.querySelectorAll(texts)].map(
    node => [light(getComputedStyle(node).color), light(behind(node))].sort((a, b) => b - a)
  ).map(([high, low]) => (high + 0.05) / (low + 0.05)).reduce((least, one) => Math.min(least, one));
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(shown, scheme):
    """4.5 is what WCAG asks of text of this size."""
    browser, _, _ = shown
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.devtools("Emulation.setEmulatedMedia", media)
    brightness = sum(map(int, re.findall(r"\d+", browser.evaluate("getComputedStyle(document.body).backgroundColor"))))
    assert (brightness > 3 * 128) == (scheme == "light")
    assert browser.evaluate(CONTRAST) >= 4.5
