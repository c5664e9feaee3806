"""Files of figures: whole whatever their titles hold, the same each time, in the colours of a page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from requested import resolve_table
from views.runs import filled, result, rows_of

from harness.errors import UserError
from harness.planning.table import Figure, load_table
from harness.views.figures import INK, MUTED, POINT, SERIES, canvas_of, figure_view
from harness.views.view import PICTURES, file_of

CONTROL = "\x07\x1b[31m\x00\ufffe"
TITLES = [r"$\\frac{1}$", "costs $5, not $6_$", f"a {CONTROL} <&>\"'\nb"]
BEGINS = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}


def curves(title: str) -> Any:
    points = [[title, title, title, 20, x, title, 50.0, 1.0, 3, 3, 51.0, title, 49.0, 53.0] for x in (1.0, 2.0, None)]
    return canvas_of(pd.DataFrame(points, columns=POINT, dtype=object), Figure(x="alpha", label=title))


@pytest.mark.parametrize("title", TITLES)
def test_any_title_gives_a_whole_file(title: str) -> None:
    contents = {format: file_of(lambda: curves(title), format) for format in PICTURES}
    assert all(content.startswith(BEGINS[format]) for format, content in contents.items())
    assert ElementTree.fromstring(contents["svg"]).tag.endswith("svg")


@pytest.mark.parametrize("format", PICTURES)
def test_a_figure_is_the_same_file_each_time_and_has_the_colours_of_a_page(format: str) -> None:
    r = resolve_table("views", "paper", tasks=("sst2",))
    runs = [result(r, row, size, *rest, 0.1, dev=0.1 * rest[1]) for size, row, *rest in r.places]
    grid = filled(r, runs, rows_of(r))
    file = figure_view(grid).written(format)
    assert file.startswith(BEGINS[format])
    assert file == figure_view(grid).written(format)
    if format == "svg":
        colours = set(re.findall(r"#[0-9a-f]{6}", file.decode()))
        assert colours & set(SERIES)
        assert colours <= {INK, MUTED, "#d0d7de", "#ffffff", *SERIES}, colours


def test_a_figure_needs_a_number_of_each_row(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "benchmarks/views.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("set: {num_views: 3}", "set: {alpha: 0.3}"))
    with pytest.raises(UserError, match=r"key figure.x: the row 'K = 3' sets no number num_views"):
        load_table(tmp_path / "mine.yaml")
