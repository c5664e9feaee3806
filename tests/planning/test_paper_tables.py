"""The tables of the SCL paper and CMLM's figures: counts, numbers, selection by hand-computed examples, captions, figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from requested import resolve_table
from views.runs import filled, result, rows_of

from harness.errors import UserError
from harness.planning.table import load_table
from harness.views.figures.figure import figure_view
from harness.views.figures.panels import FAINT, INK, MUTED, SERIES

# --------------------------------------------------------------------------------------------- captions and figures


@pytest.mark.parametrize(("format", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_figure_is_the_same_file_each_time_and_has_the_colours_of_a_page(format: str, begins: bytes) -> None:
    r = resolve_table("views", "paper")
    runs = [result(r, row, size, *rest, 0.1, dev=0.1 * rest[1]) for size, row, *rest in r.places]
    grid = filled(r, runs, rows_of(r))
    file = figure_view(grid).written(format)
    assert file.startswith(begins)
    assert file == figure_view(grid).written(format)
    if format == "svg":
        colours = set(re.findall(r"#[0-9a-f]{6}", file.decode()))
        assert colours & set(SERIES)
        assert colours <= {INK, MUTED, FAINT, "#ffffff", *SERIES}, colours


def test_a_figure_needs_a_number_of_each_row(tmp_path: object) -> None:

    assert isinstance(tmp_path, Path)
    text = (Path(__file__).parents[2] / "benchmarks/views.yaml").read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("set: {num_views: 3}", "set: {alpha: 0.3}"))
    with pytest.raises(UserError, match=r"key figure.x: the row 'K = 3' sets no number num_views"):
        load_table(path)
