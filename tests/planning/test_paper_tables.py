"""The tables of the SCL paper and CMLM's figures: counts, numbers, selection by hand-computed examples, captions, figures."""

from __future__ import annotations

import csv
import io
import re
from itertools import product
from pathlib import Path

import pytest
from requested import UNREAD, resolve_table
from views.runs import filled, result, rows_of

from harness.errors import UserError
from harness.planning.resolved import ResolvedTable
from harness.planning.runs import make_plan
from harness.planning.table import load_table
from harness.planning.task_reader import Translation
from harness.scores import Result
from harness.tasks.sources import open_source
from harness.tasks.task import TASKS
from harness.views.caption import Caption, caption_lines, note_lines
from harness.views.figures.figure import figure_view
from harness.views.figures.panels import FAINT, INK, MUTED, SERIES

LEAST = {"subsets": (0, 1, 2, 3), "tasks": ("sst2",)}


def caption(r: ResolvedTable, runs: list[Result]) -> str:
    grid = filled(r, runs, rows_of(r))
    return "\n".join([*caption_lines(grid, Caption(1)), *note_lines(grid, Caption(1))])


@pytest.mark.parametrize(("table", "size"), [("scl_few_shot", 20), ("scl_full_size", 0)])
def test_lambda_and_tau_are_selected_by_the_papers_two_rules(table: str, size: int) -> None:
    """Few-shot: the three best dev scores decide, so a configuration with one failure among ten wins; full size: the mean of all."""
    r = resolve_table(table, "grid", tasks=("sst2",), **({"sizes": (size,)} if size else {}))
    title = "CE + SCL (tuned)"
    steady, peaked, *others = [row.name for row in r.printed_rows[title]]
    assert len(others) == 22
    runs = []
    for row in (steady, peaked, *others, "CE"):
        for index, (subset, seed) in enumerate(r.replicates_at(size)):
            dev = 0.7 if row == steady else (0.8 if index < 3 else 0.1) if row == peaked else 0.2
            runs.append(result(r, row, size, "sst2", subset, seed, 0.01 * index, dev=dev))
    cell = filled(r, runs, rows_of(r)).cells[size, title, "sst2"]
    assert cell.selected == ((peaked if size else steady),)
    assert "the configuration with the highest" in caption(r, runs)


# --------------------------------------------------------------------------------------------- captions and figures


def test_the_points_of_a_figure_are_its_cells() -> None:
    r = resolve_table("unlabelled", "paper", tasks=("sst2", "cola"))
    runs = [
        result(r, row, size, column, subset, seed, 0.1, dev=int(row) / 5000 + 0.1 * subset)
        for size, row, column, subset, seed in r.places
        if not (column == "cola" and row == "500" and subset == 4)
    ]
    view = figure_view(filled(r, runs, rows_of(r)))
    points = [*view.frame.itertuples()]
    assert [(point.column, point.x) for point in points] == list(
        product(("CoLA", "SST-2"), (100, 500, 1000, 1500, 2000, 2500))
    )
    assert points[-1].value == pytest.approx(100 * (0.5 + 0.2))
    assert (points[1].value, points[1].done, points[1].expected) == (None, 12, 15)
    read = list(csv.DictReader(io.StringIO(view.written("csv"))))
    assert [row["value"] == "" for row in read] == [point.value is None for point in points]
    assert {row["scores"] for row in read} == {"dev"}
    assert float(read[-1]["x"]) == 2500


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


def test_both_rows_train_select_and_test_on_the_same_rows(packaged: dict[str, Path]) -> None:
    """On real texts, in the quick preset: ten stratified samples a size, one dev and one test set."""
    source = open_source(None)
    plan = make_plan(
        resolve_table("scl_few_shot", "quick"),
        source,
        UNREAD,
        translation=Translation(),
    )
    data = {(run.row, run.size, run.subset): run.stage.data for run in plan.runs}
    assert len(data) == 40
    for size, subset in product((100, 1000), range(10)):
        ce, scl = (data[row, size, subset] for row in ("CE", "CE + SCL"))
        assert ce == scl
    assert len({each.train.digest for each in data.values()}) == 20
    (dev,), (test,) = (
        {each.digest for each in sets}
        for sets in ([d.dev for d in data.values() if d.dev], [d.tests[0] for d in data.values()])
    )
    assert not set(plan.library[dev].texts) & set(plan.library[test].texts)
    share = source.load(TASKS["movies"], "train").gold.mean()
    for each in data.values():
        rows = plan.library[each.train.digest]
        assert abs(rows.gold.sum() - share * len(rows)) < 1
