"""`report --format html` of recorded runs, in a headless Chromium: nothing asked for, sorting, names, contrast, narrow screens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Benched
from views.browser import CHROMIUM, Browser, browser

from harness.cli import main

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

"""A line of each colour, whichever of them the table has."""
CONTRAST = """
(() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const found = numbers(getComputedStyle(element).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const weak = [];
  const seen = new Set();
  for (const element of document.querySelectorAll("body *")) {
    const style = getComputedStyle(element), name = element.tagName;
    const text = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (["SCRIPT", "STYLE"].includes(name) || !text) continue;
    const found = ratio(numbers(style.color), behind(element));
    seen.add(name);
    if (found < 4.5) weak.push([name, element.textContent.slice(0, 30), style.color, found]);
  }
  return { weak, seen: [...seen] };
})()
"""


@pytest.fixture(scope="module")
def page(benched: Benched, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the bench."""
    path = tmp_path_factory.mktemp("page") / "few.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(benched.folder)
        assert main(["report", "--out", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def test_the_page_of_recorded_runs(page: Path, benched: Benched, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text()
    assert "harness report --table few_shot" in text
    assert not [*page.parent.glob(".*")], "a part of a file stays"
    monkeypatch.chdir(benched.folder)
    assert main(["report", "--format", "html", "--out", str(page)]) == 0
    assert page.read_text() == text


@needs_chromium
def test_nothing_leaves_the_file_and_nothing_is_reported(page: Path, chromium: Browser) -> None:
    chromium.open(page)
    chromium.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert [url for url in chromium.requests if not url.startswith("data:")] == [page.resolve().as_uri()]
    assert chromium.complaints == []
    # The policy does refuse what it should.
    refused = "fetch('https://example.org/').then(() => false, () => true)"
    assert chromium.value(refused)
    assert chromium.value("(() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1'; "
                          "document.body.append(s); return window.ran === undefined; })()")  # fmt: skip


@needs_chromium
def test_columns_sort(page: Path, chromium: Browser) -> None:
    chromium.open(page)
    table = "document.querySelector('#results ~ .wide table')"
    column = f"[...{table}.tBodies[0].rows].map((row) => row.cells[1].textContent)"
    head = f"{table}.tHead.rows[0].cells[1]"
    before = chromium.value(column)
    assert len(before) == 7
    scores = []
    for state in ("descending", "ascending", None):
        chromium.value(f"{head}.querySelector('button').click()")
        assert chromium.value(f"{head}.getAttribute('aria-sort')") == state
        scores.append([float(text.split()[0]) for text in chromium.value(column)])
    assert scores[0] == sorted(scores[0], reverse=True)
    assert scores[1] == sorted(scores[1])
    assert chromium.value(column) == before


@needs_chromium
def test_everything_is_there_without_scripts(page: Path, chromium: Browser) -> None:
    chromium.open(page)
    text = "document.querySelector('main').textContent.replace(/\\s+/g, ' ')"
    with_scripts = chromium.value(text)
    chromium.open(page, script=False)
    assert chromium.call("DOM.getDocument")["root"]
    chromium.call("Emulation.setScriptExecutionDisabled", value=False)
    assert chromium.value("document.querySelectorAll('button, input').length") == 0
    assert chromium.value(text) == with_scripts


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_everything_has_a_name_and_is_seen(dark: bool, page: Path, chromium: Browser) -> None:
    chromium.open(page, dark=dark)
    chromium.value("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    found = chromium.value(CONTRAST)
    assert found["weak"] == []
    assert {"TD", "BUTTON"} <= set(found["seen"])
    named = (
        "button",
        "link",
        "searchbox",
        "region",
        "table",
        "image",
        "img",
        "columnheader",
        "rowheader",
        "navigation",
    )
    nodes: list[dict[str, Any]] = chromium.call("Accessibility.getFullAXTree")["nodes"]
    mine = [node for node in nodes if not node["ignored"] and node["role"]["value"].lower() in named]
    assert len(mine) > 20
    assert [node for node in mine if not node.get("name", {}).get("value")] == []
    levels = chromium.value("[...document.querySelectorAll('h1, h2, h3')].map((each) => Number(each.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= level + 1 for level, after in itertools.pairwise(levels))


@needs_chromium
def test_a_narrow_screen_and_paper_hold_it(page: Path, chromium: Browser) -> None:
    chromium.open(page, width=360)
    width = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    most, there = chromium.value(width)
    assert most <= there
    assert chromium.value("Math.min(...[...document.images].map((each) => each.naturalWidth))") > 0, "it is admitted"
    chromium.call("Emulation.setEmulatedMedia", media="print")
    assert chromium.value("getComputedStyle(document.querySelector('nav')).display") == "none"
