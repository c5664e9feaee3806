"""The figure of a table: its cells over a value that its rows set, as points and drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.errors import UserError
from harness.methods import METHODS
from harness.planning.aggregation import AVERAGE
from harness.planning.resolved import ResolvedTable
from harness.planning.row import Row
from harness.planning.table import HOURS, SIZE, Figure
from harness.views.cells import Grid, counted_scores, has_average
from harness.views.figures.panels import INK, MUTED, handles_of, look, panels_of
from harness.views.view import View

if TYPE_CHECKING:
    import pandas as pd

LEGEND = 1.7
"""Inches beside the panels for a legend of more than LEGEND_INSIDE lines."""
LEGEND_INSIDE = 3
CLOSE = 0.1
"""Points closer than this share of the axis have no ticks of their own."""


@dataclass(frozen=True)
class Point:
    """One point of a curve. `value` and `spread` in points (x100), None until all `expected` runs are done; `paper`: the printed value,
    where there is one; `series`: the line that it is on, where there are several; `low`, `high`: of the runs that the value is made of, None
    for an Avg of cells. Without `x` it is a line of reference."""

    column: str
    metric: str
    scores: str
    size: int
    x: float | None
    row: str
    value: float | None
    spread: float | None
    done: int
    expected: int
    paper: float | None = None
    series: str = ""
    low: float | None = None
    high: float | None = None


def figure_of(resolved: ResolvedTable) -> Figure:
    """What a table's figure shows. Raises UserError for a table without one."""
    if resolved.table.figure is None:
        raise UserError(f"table {resolved.table.name} has no figure; print it with --table {resolved.table.name}.")
    return resolved.table.figure


def points_of(grid: Grid) -> list[Point]:
    """The points of a table's figure by column, size and x."""
    r, shown = grid.resolved, figure_of(grid.resolved)
    of_line = {title: _line(rows[0], shown) for title, rows in r.printed_rows.items()}
    several = len({*of_line.values()}) > 1
    columns = {name: (column.title, column.metric) for name, column in r.columns.items()}
    columns |= {AVERAGE: ("Avg", "average")} if has_average(r) else {}
    runs = counted_scores(grid).groupby(["size", "row", "column"])["test"]
    ends = {place: (float(scores.min()), float(scores.max())) for place, scores in runs}
    found = []
    for name, titles in columns.items():
        for size in r.sizes:
            for title, rows in r.printed_rows.items():
                cell, none = grid.cells[size, title, name], (None, None)
                low, high = none if cell.value is None else ends.get((size, title, name), none)
                value, spread, paper, low, high = (
                    None if v is None else 100 * v for v in (cell.value, cell.spread, cell.paper, low, high)
                )
                x = grid.hours.get(title) if shown.x == HOURS else shown.x_of(rows[0], size)
                if x is not None and shown.x == "pre_train_step":  # of the updates that were run
                    step = r.pre_train_step(rows[0])
                    x = float(r.optim("pre_train", row=rows[0]).steps if step == "last" else step)
                at = (*titles, r.aggregate.scores, size, x, title)
                series = title if x is None else of_line[title] if several else ""
                found.append(Point(*at, value, spread, cell.done, cell.expected, paper, series, low, high))
    order = [title for title, _ in columns.values()]
    lines = list(dict.fromkeys(point.series for point in found))
    return sorted(found, key=lambda p: (order.index(p.column), p.size, lines.index(p.series), p.x or 0))


def _line(row: Row, shown: Figure) -> str:
    """The name of the line that a row is on."""
    before = "+".join(METHODS[part].title for part in row.pre_train.split("+") if part)
    return row.line or (row.title if shown.x == SIZE else before)


def _frame(points: Sequence[Point]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([asdict(point) for point in points], columns=[f.name for f in fields(Point)], dtype=object)


def figure_view(grid: Grid) -> View:
    """One row a point."""
    points, shown = points_of(grid), figure_of(grid.resolved)
    done = sum(point.value is not None for point in points)
    said = f"{grid.resolved.table.title} over {shown.label}: {done} of {len(points)} points have all their runs done."
    return View("figure", _frame(points), [], [said], partial(canvas_of, points, shown) if done else None)


def canvas_of(points: Sequence[Point], shown: Figure) -> Any:
    """The figure of matplotlib with a panel for each column of the points."""
    titles = list(dict.fromkeys(point.column for point in points))
    lines = len({_place(point, shown) for point in points})
    beside = LEGEND if lines > LEGEND_INSIDE else 0
    canvas, panels = panels_of(len(titles), more=(beside, 0))
    for axes, title in zip(panels, titles, strict=True):
        of_column = [point for point in points if point.column == title]
        _panel(axes, of_column, shown)
        axes.set(title=title, xlabel=shown.label, ylabel=f"{of_column[0].scores} {of_column[0].metric} (x100)")
        if not beside and len(axes.get_legend_handles_labels()[1]) > 1:
            axes.legend()
    if beside and (handles := handles_of(canvas)):
        canvas.legend(handles.values(), handles, loc="outside right upper")
    return canvas


def _place(point: Point, shown: Figure) -> tuple[int, str]:
    """The line that a point is on: its size, 0 where that is the axis, and its series."""
    return 0 if shown.x == SIZE else point.size, point.series


def _bars(point: Point, shown: Figure) -> tuple[float, float]:
    """How far its bar reaches down and up."""
    if shown.bars == "spread" or point.value is None:
        return point.spread or 0.0, point.spread or 0.0
    low, high = (point.value if end is None else end for end in (point.low, point.high))
    return point.value - low, high - point.value


def _panel(axes: Any, points: Sequence[Point], shown: Figure) -> None:
    curves = [point for point in points if point.x is not None]
    lines = list(dict.fromkeys(_place(point, shown) for point in curves))
    for index, (size, series) in enumerate(lines):
        here = [point for point in curves if _place(point, shown) == (size, series)]
        bars = [_bars(point, shown) for point in here]
        axes.errorbar(
            [point.x for point in here],
            [math.nan if point.value is None else point.value for point in here],  # a gap, not a line across it
            yerr=[*zip(*bars, strict=True)] if any(map(any, bars)) else None,
            **look(index),
            capsize=3,
            elinewidth=0.8,
            label=series or f"{size:,} labelled examples",
        )
        printed = [point for point in here if point.paper is not None]
        if printed:
            xs, ys = [point.x for point in printed], [point.paper for point in printed]
            label = None if index else "the paper's"
            axes.plot(xs, ys, color=INK, marker="x", linestyle="none", markersize=7, label=label)
    _references(axes, points)
    places = sorted({point.x for point in curves if point.x is not None})
    if shown.log:
        _log_ticks(axes, places)
    elif shown.x == HOURS:
        axes.locator_params(axis="x", nbins=5)
    elif all(right - left > CLOSE * (places[-1] - places[0]) for left, right in itertools.pairwise(places)):
        axes.set_xticks(places)
    else:  # their labels would overlap
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter("{x:,.0f}")


def _references(axes: Any, points: Sequence[Point]) -> None:
    """Rows without a place on the axis, as lines across it."""
    strokes = itertools.cycle(((0, (6, 2)), (0, (1, 2))))
    for point, stroke in zip([point for point in points if point.x is None], strokes, strict=False):
        if point.value is not None:
            axes.axhline(point.value, color=MUTED, linewidth=1, linestyle=stroke, label=point.row)


def _log_ticks(axes: Any, places: list[float]) -> None:
    """A logarithmic axis with a tick at each place that is not close to the tick before."""
    from matplotlib.ticker import NullLocator

    ticks: list[float] = []
    for place in places:
        if not ticks or math.log(place / ticks[-1]) > CLOSE * math.log(places[-1] / places[0]):
            ticks.append(place)
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
