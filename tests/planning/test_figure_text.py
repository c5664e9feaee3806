"""Texts in figures are data: no title begins a formula or breaks a file."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from harness.planning.table import Figure
from harness.views.figures.figure import Point, canvas_of
from harness.views.figures.panels import FORMATS, file_of

CONTROL = "\x07\x1b[31m\x00\ufffe"
TITLES = [r"$\\frac{1}$", "costs $5, not $6_$", f"a {CONTROL} <&>\"'\nb"]
BEGINS = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
SVG = "{http://www.w3.org/2000/svg}"


def curves(title: str) -> Any:
    def point(x: float | None) -> Point:
        return Point(title, title, title, 20, x, title, 50.0, 1.0, 3, 3, 51.0, title, 49.0, 53.0)

    return canvas_of([point(1.0), point(2.0), point(None)], Figure(x="alpha", label=title))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("title", TITLES)
def test_any_title_gives_a_whole_file(title: str, format: str) -> None:
    content = file_of(lambda: curves(title), format)
    assert content.startswith(BEGINS[format])
    if format == "svg":
        ElementTree.fromstring(content)
