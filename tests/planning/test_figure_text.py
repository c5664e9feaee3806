"""Texts in figures are data: no title begins a formula or breaks a file."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

from harness.planning.table import Figure
from harness.views.figures.figure import POINT, canvas_of
from harness.views.figures.panels import FORMATS, file_of

CONTROL = "\x07\x1b[31m\x00\ufffe"
TITLES = [r"$\\frac{1}$", "costs $5, not $6_$", f"a {CONTROL} <&>\"'\nb"]
BEGINS = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
SVG = "{http://www.w3.org/2000/svg}"


def curves(title: str) -> Any:
    points = [[title, title, title, 20, x, title, 50.0, 1.0, 3, 3, 51.0, title, 49.0, 53.0] for x in (1.0, 2.0, None)]
    return canvas_of(pd.DataFrame(points, columns=POINT, dtype=object), Figure(x="alpha", label=title))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("title", TITLES)
def test_any_title_gives_a_whole_file(title: str, format: str) -> None:
    content = file_of(lambda: curves(title), format)
    assert content.startswith(BEGINS[format])
    if format == "svg":
        ElementTree.fromstring(content)
