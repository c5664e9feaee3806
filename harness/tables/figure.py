"""Figures: the cells of a table over a value that its rows set, as points, as CSV and drawn by matplotlib."""

from __future__ import annotations

import csv
import io
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

from harness.errors import UserError
from harness.tables.cells import Grid
from harness.tables.resolve import ResolvedTable
from harness.tables.table import Figure

FORMATS = ("png", "svg", "pdf")
PANEL = (3.4, 2.6)
"""Inches of one panel."""
MARKERS, LINES = "osD^v", ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Point:
    """One point of a curve. `value` and `spread` in points (x100), None until all `expected` runs are done; `paper`: the printed
    value, where there is one."""

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


def figure_of(resolved: ResolvedTable) -> Figure:
    """What a table's figure shows. Raises UserError for a table without one."""
    if resolved.table.figure is None:
        raise UserError(f"table {resolved.table.name} has no figure; print it with --table {resolved.table.name}.")
    return resolved.table.figure


def points_of(grid: Grid) -> list[Point]:
    """The points of a table's figure by column, size and x."""
    r, shown = grid.resolved, figure_of(grid.resolved)
    found = []
    for name, column in r.columns.items():
        for size in r.sizes:
            for row in r.rows:
                cell = grid.cells[size, row.title, name]
                value, spread, paper = (None if v is None else 100 * v for v in (cell.value, cell.spread, cell.paper))
                place = (column.title, column.metric, r.aggregate.scores, size, shown.x_of(row), row.title)
                found.append(Point(*place, value, spread, cell.done, cell.expected, paper))
    return sorted(found, key=lambda point: (list(r.columns).index(_id(r, point)), point.size, point.x))


def _id(resolved: ResolvedTable, point: Point) -> str:
    return next(name for name, column in resolved.columns.items() if column.title == point.column)


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
    sizes = sorted({point.size for point in points})
    for index, size in enumerate(sizes):
        here = [point for point in points if point.size == size]
        spreads = [point.spread or 0 for point in here]
        axes.errorbar(
            [point.x for point in here],
            [math.nan if point.value is None else point.value for point in here],  # a gap, not a line across it
            yerr=spreads if any(spreads) else None,
            color=str(0.4 * index / max(1, len(sizes) - 1)),
            marker=MARKERS[index % len(MARKERS)],
            linestyle=LINES[index % len(LINES)],
            capsize=3,
            label=f"{size:,} labelled examples",
        )
        printed = [point for point in points if point.size == size and point.paper is not None]
        if printed:
            xs, ys = [point.x for point in printed], [point.paper for point in printed]
            axes.plot(xs, ys, "kx", markersize=7, label="the paper's" if not index else None)
    axes.set_xticks(sorted({point.x for point in points}))
    axes.grid(axis="y", color="0.85", linewidth=0.6)
    axes.set_axisbelow(True)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(frameon=False)
