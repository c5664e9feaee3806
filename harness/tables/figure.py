"""Figures: the cells of a table over a value that its rows set, as points, as CSV and drawn by matplotlib."""

from __future__ import annotations

import csv
import io
import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

from harness.errors import UserError
from harness.methods import METHODS
from harness.tables.aggregation import AVERAGE
from harness.tables.cells import Grid, has_average
from harness.tables.resolve import ResolvedTable
from harness.tables.table import Figure

FORMATS = ("png", "svg", "pdf")
PANEL = (3.4, 2.6)
"""Inches of one panel."""
CLOSE = 0.1
"""Points closer than this share of the axis have no ticks of their own."""
MARKERS, LINES = "osD^v", ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Point:
    """One point of a curve. `value` and `spread` in points (x100), None until all `expected` runs are done; `paper`: the printed value,
    where there is one; `series`: the line that it is on, where a size has several."""

    column: str
    metric: str
    scores: str
    size: int
    x: float
    row: str
    value: float | None
    spread: float | None
    done: int
    expected: int
    paper: float | None = None
    series: str = ""


def figure_of(resolved: ResolvedTable) -> Figure:
    """What a table's figure shows. Raises UserError for a table without one."""
    if resolved.table.figure is None:
        raise UserError(f"table {resolved.table.name} has no figure; print it with --table {resolved.table.name}.")
    return resolved.table.figure


def points_of(grid: Grid) -> list[Point]:
    """The points of a table's figure by column, size and x."""
    r, shown = grid.resolved, figure_of(grid.resolved)
    several = len({row.pre_train for row in r.rows}) > 1
    columns = {name: (column.title, column.metric) for name, column in r.columns.items()}
    columns |= {AVERAGE: ("Avg", "average")} if has_average(r) else {}
    found = []
    for name, titles in columns.items():
        for size in r.sizes:
            for row in r.rows:
                cell = grid.cells[size, row.title, name]
                value, spread, paper = (None if v is None else 100 * v for v in (cell.value, cell.spread, cell.paper))
                x = shown.x_of(row)
                if shown.x == "pre_train_step":  # of the updates that were run
                    step = r.pre_train_step(row)
                    x = float(r.optim("pre_train", row=row).steps if step == "last" else step)
                series = "+".join(METHODS[part].title for part in row.pre_train.split("+") if part) if several else ""
                place = (*titles, r.aggregate.scores, size, x, row.title)
                found.append(Point(*place, value, spread, cell.done, cell.expected, paper, series))
    order = [title for title, _ in columns.values()]
    lines = list(dict.fromkeys(point.series for point in found))
    return sorted(found, key=lambda p: (order.index(p.column), p.size, lines.index(p.series), p.x))


def csv_of(points: list[Point]) -> str:
    """The points as CSV, one a line; what is missing is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [each.name for each in fields(Point)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(point) for point in points)
    return text.getvalue()


def drawn(grid: Grid, format: str) -> bytes:
    """The figure as a file: a panel for each column, a line for each size, bars of one standard deviation. Lines differ in marker
    and stroke, never in colour alone. Points whose runs are not all done are left out."""
    return file_of(lambda: _figure(grid, figure_of(grid.resolved)), format)


def file_of(make: Callable[[], Any], format: str) -> bytes:
    """The figure of matplotlib that `make` returns, as a file: the same bytes each time."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "harness", "font.size": 9}), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = io.BytesIO()
        no_date: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
        make().savefig(file, format=format, dpi=200, metadata=no_date.get(format))
    return file.getvalue()


def _figure(grid: Grid, shown: Figure) -> Any:
    from matplotlib.figure import Figure as Canvas  # no pyplot: no backend and no global state

    points = points_of(grid)
    titles = list(dict.fromkeys(point.column for point in points))
    wide = min(2, len(titles))
    high = -(-len(titles) // wide)
    canvas = Canvas(figsize=(PANEL[0] * wide, PANEL[1] * high), layout="constrained")
    for panel, title in enumerate(titles):
        axes = canvas.add_subplot(high, wide, panel + 1)
        mine = [point for point in points if point.column == title]
        _panel(axes, mine)
        axes.set(title=title, xlabel=shown.label, ylabel=f"{mine[0].scores} {mine[0].metric} (x100)")
    return canvas


def _panel(axes: Any, points: list[Point]) -> None:
    lines = list(dict.fromkeys((point.size, point.series) for point in points))
    for index, (size, series) in enumerate(lines):
        here = [point for point in points if (point.size, point.series) == (size, series)]
        spreads = [point.spread or 0 for point in here]
        axes.errorbar(
            [point.x for point in here],
            [math.nan if point.value is None else point.value for point in here],  # a gap, not a line across it
            yerr=spreads if any(spreads) else None,
            color=str(0.4 * index / max(1, len(lines) - 1)),
            marker=MARKERS[index % len(MARKERS)],
            linestyle=LINES[index % len(LINES)],
            capsize=3,
            label=series or f"{size:,} labelled examples",
        )
        printed = [point for point in here if point.paper is not None]
        if printed:
            xs, ys = [point.x for point in printed], [point.paper for point in printed]
            axes.plot(xs, ys, "kx", markersize=7, label="the paper's" if not index else None)
    places = sorted({point.x for point in points})
    if all(right - left > CLOSE * (places[-1] - places[0]) for left, right in itertools.pairwise(places)):
        axes.set_xticks(places)
    else:  # their labels would overlap
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", color="0.85", linewidth=0.6)
    axes.set_axisbelow(True)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(frameon=False)
