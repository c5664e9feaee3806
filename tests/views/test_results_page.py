"""The page of a table, from made-up results: self-contained, escaped, the same bytes each time, sentences for what is missing."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from views.runs import filled, result, results, rows_of

from harness.planning.request import Request
from harness.planning.resolve import resolve
from harness.planning.resolved import ResolvedTable
from harness.planning.table import load_table
from harness.scores import Result
from harness.views.differences import differences
from harness.views.figures import figure_view
from harness.views.table import Caption, results_page
from harness.views.variance import variance

HOSTILE = "<script>alert(1)</script> & \"x\" $\\frac$ 'y'"


def few_shot(**request: Any) -> ResolvedTable:
    return resolve(load_table("few_shot"), Request(preset="paper", **request))


SMALL = {"methods": ("ft", "scl"), "tasks": ("sst2", "rte"), "sizes": (20,), "subsets": (0, 1), "seeds": (31, 42)}


def made(r: ResolvedTable, found: list[Result]) -> str:
    """The page of these results."""
    grid = filled(r, found, rows_of(r))
    views: dict[str, Any] = {"Comparisons": differences(grid), "Variance": variance(grid)}
    if r.table.figure:
        views["Figure"] = figure_view(grid)
    return results_page(grid, Caption(len(found), "files"), views, ["harness bench ..."])


class Parsed(HTMLParser):
    """The elements of a page with their attributes, and its text outside of style and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.within = ""
        self.inline: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.within = tag

    def handle_endtag(self, tag: str) -> None:
        self.within = ""

    def handle_data(self, data: str) -> None:
        if self.within in ("style", "script"):
            self.inline[self.within] = data
        else:
            self.text += data


@pytest.fixture(scope="module")
def page() -> str:
    r = few_shot(**SMALL)
    return made(r, results(r))


def test_nothing_is_asked_of_anywhere(page: str) -> None:
    """The policy admits this style and this script alone, and no element or attribute would need more."""
    found = Parsed(page)
    (policy,) = [a["content"] for tag, a in found.elements if a.get("http-equiv") == "Content-Security-Policy"]
    for name in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(found.inline[name].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in str(policy)
    assert str(policy).startswith("default-src 'none'; ")
    assert "img-src data:;" in str(policy)
    assert not {tag for tag, _ in found.elements} & {"link", "iframe", "object", "embed", "base", "image"}
    for tag, attributes in found.elements:
        assert not {name for name in attributes if name in ("style", "srcset") or name.startswith("on")}, tag
        assert str(attributes.get("src", "data:")).startswith("data:"), tag
        assert str(attributes.get("href", "#")).startswith("#"), tag
    assert "url(" not in found.inline["style"]
    assert "@import" not in found.inline["style"]


def test_every_picture_has_a_name(page: str) -> None:
    figures = re.findall(r"<figure>(.*?)</figure>", page, flags=re.DOTALL)
    assert len(figures) == 1, "differences"
    for figure in figures:
        ((alt, image),) = re.findall(r'<img alt="([^"]+)" src="data:image/svg\+xml;base64,([^"]+)">', figure)
        assert alt
        assert ElementTree.fromstring(base64.b64decode(image)).tag.endswith("svg")
    ids = [str(attributes["id"]) for _, attributes in Parsed(page).elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_cells_have_marks_and_the_papers_row() -> None:
    r = few_shot(**SMALL)
    high = [replace(each, test=0.5 + 0.4 * (each.row == "SCL") + 0.001 * (each.test or 0)) for each in results(r)]
    text = made(r, high)
    assert "higher" in text
    assert re.search(r"<b>9\d\.\d\d ± \d\.\d\d</b>", text)
    whole = few_shot(methods=("ft", "scl"), tasks=("sst2",), sizes=(20,))
    assert re.search(r"<td>SCL \(paper\)</td><td align=\"right\">\d\d\.\d\d", made(whole, results(whole)))


def test_names_are_escaped() -> None:
    r = few_shot(**SMALL)
    rows = tuple(row.model_copy(update={"name": HOSTILE}) if row.name == "SCL" else row for row in r.rows)
    columns = {name: column.model_copy(update={"title": f"<i>{name}"}) for name, column in r.columns.items()}
    r = replace(r, rows=rows, columns=columns)
    found = results(r)
    found[-1] = replace(found[-1], status="failed", test=None, reason="<b>no</b> memory")
    text = made(r, found)
    parsed = Parsed(text)
    assert sum(tag == "script" for tag, _ in parsed.elements) == 1
    assert not any(tag == "i" for tag, _ in parsed.elements)
    assert HOSTILE in parsed.text
    assert "<b>no</b> memory" in parsed.text


@pytest.mark.parametrize("kept", [0.5, 0.0])
def test_what_is_missing_is_said(kept: float) -> None:
    r = few_shot(**SMALL)
    found = results(r)
    text = Parsed(made(r, found[: int(kept * len(found))])).text
    assert "missing or failed" in text
    assert not re.search(r"\b(nan|None|inf)\b", text, flags=re.IGNORECASE)


def test_a_figure_of_the_tables_own_is_there_too() -> None:
    r = resolve(load_table("views"), Request(preset="paper", tasks=("mnli",)))
    found = [result(r, row, size, *rest, 0.1, dev=0.1 * rest[1] + 0.01 * len(row)) for size, row, *rest in r.places]
    assert "over K, complementary views: 10 of 10 points have all their runs done." in made(r, found)
    assert "over K, complementary views: 9 of 10 points have all their runs done." in made(r, found[:-1])


@pytest.mark.slow
def test_the_largest_table_can_be_mailed() -> None:
    r = resolve(load_table("pretraining"), Request(preset="paper"))
    assert len(made(r, results(r)).encode()) < 1_500_000
