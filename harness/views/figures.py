"""The figure of a table, its cells over a value that its rows set; and the panels that all figures are drawn on: sizes, colours, marks, legends, files. Pure.

Text and axes have the colour INK, series those of `SERIES`. Series differ in marker and stroke too, never in colour alone.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import pandas as pd

from harness.errors import UserError
from harness.methods import METHODS
from harness.planning.aggregation import AVERAGE
from harness.planning.resolved import ResolvedTable
from harness.planning.table import HOURS, SIZE, Figure
from harness.views.cells import CELL, Grid, has_average
from harness.views.view import View

INK, MUTED = "#000000", "#57606a"
"""Colours of text and axes, and of lines of reference."""
SERIES = ("#0b6bb5", "#660000", "#ff5500", "#994433", "#401070", "#1a8cff", "#8c8c8c", "#0000cc")
"""Colours of series, at least 0.11 apart in OKLab for full and for red-, green- and blue-blind sight (Machado et al. 2009)."""
MARKERS, STROKES = "osD^vPX*", ("-", "--", ":", "-.")


def look(place: int) -> dict[str, Any]:
    """Colour, marker and stroke of the row at a place of its table, so that it looks alike in every figure: of 64 rows no two alike."""
    colour, turn = place % len(SERIES), place // len(SERIES)
    marker = MARKERS[(place + turn) % len(MARKERS)]
    return {"color": SERIES[colour], "marker": marker, "linestyle": STROKES[(place + turn) % len(STROKES)]}


def panels_of(
    count: int, panel: tuple[float, float] = (3.4, 2.6), legend: float = 0, sharex: bool = False
) -> tuple[Any, list[Any]]:
    """(figure of matplotlib, its `count` axes in rows of up to two). `panel`: width and height in inches of each; `legend`: the height below them."""
    from matplotlib.figure import Figure  # no pyplot: no backend and no global state

    wide, high = max(1, min(2, count)), max(1, -(-count // 2))
    canvas = Figure(figsize=(panel[0] * wide, panel[1] * high + legend), layout="constrained")
    axes: list[Any] = []
    for place in range(count):
        axes.append(canvas.add_subplot(high, wide, place + 1, sharex=axes[0] if sharex and axes else None))
    return canvas, axes


def legend_below(canvas: Any) -> None:
    """A legend of all panels, each name once."""
    found = [axes.get_legend_handles_labels() for axes in canvas.axes]
    handles = {label: handle for each in found for handle, label in zip(*each, strict=True)}
    if len(handles) > 1:
        canvas.legend(handles.values(), handles, loc="outside lower center", ncols=min(3, len(handles)))


POINT = [
    *("column", "metric", "scores", "size", "x", "row", "value", "spread", "done", "expected", "paper", "series"),
    *("low", "high"),
]
"""Of a point of a curve. `value` and `spread` in points (x100), None until all `expected` runs are done; `paper`: the printed value, where
there is one; `series`: the line that it is on, where there are several; `low`, `high`: of the runs that the value is made of, None for an
Avg of cells. Without `x` it is a line of reference."""


def figure_of(resolved: ResolvedTable) -> Figure:
    """What a table's figure shows. Raises UserError for a table without one."""
    if resolved.table.figure is None:
        raise UserError(f"table {resolved.table.name} has no figure; leave it out.")
    return resolved.table.figure


def points_of(grid: Grid) -> pd.DataFrame:
    """The points of a table's figure by column, size and x."""
    r, shown = grid.resolved, figure_of(grid.resolved)
    of_line = {}
    for title, (row, *_) in r.printed_rows.items():
        before = "+".join(METHODS[part].title for part in row.pre_train.split("+") if part)
        of_line[title] = row.line or (row.title if shown.x == SIZE else before)
    several = len({*of_line.values()}) > 1
    columns = {name: (column.title, column.metric) for name, column in r.columns.items()}
    columns |= {AVERAGE: ("Avg", "average")} if has_average(r) else {}
    ends = grid.counted.groupby(CELL)["test"].agg(["min", "max"]).T
    found: list[dict[str, Any]] = []
    for (name, titles), size, title in itertools.product(columns.items(), r.sizes, r.printed_rows):
        cell, row = grid.cells[size, title, name], r.printed_rows[title][0]
        x = grid.hours.get(title) if shown.x == HOURS else shown.x_of(row, size)
        if x is not None and shown.x == "pre_train_step":  # of the updates that were run
            step = r.pre_train_step(row)
            x = float(r.optim("pre_train", row=row).steps if step == "last" else step)
        series = title if x is None else of_line[title] if several else ""
        low, high = (None, None) if cell.value is None else ends.get((size, title, name), (None, None))
        numbers = (cell.value, cell.spread, cell.paper, low, high)
        value, spread, paper, low, high = (None if each is None else 100 * each for each in numbers)
        at = (*titles, "test" if r.scored_set == "test set" else "dev", size, x, title)
        point = (*at, value, spread, cell.done, cell.expected, paper, series, low, high)
        found.append(dict(zip(POINT, point, strict=True)))
    order = [title for title, _ in columns.values()]
    lines = [*dict.fromkeys(point["series"] for point in found)]
    found.sort(key=lambda p: (order.index(p["column"]), p["size"], lines.index(p["series"]), p["x"] or 0))
    return pd.DataFrame(found, columns=POINT, dtype=object)


def figure_view(grid: Grid) -> View:
    """One row a point."""
    points, shown = points_of(grid), figure_of(grid.resolved)
    done = int(points["value"].notna().sum())
    said = f"{grid.resolved.table.title} over {shown.label}: {done} of {len(points)} points have all their runs done."
    return View("figure", points, [], [said], partial(canvas_of, points, shown) if done else None)


def canvas_of(points: pd.DataFrame, shown: Figure) -> Any:
    """The figure of matplotlib with a panel for each column of the points."""
    points = points.astype(dict.fromkeys(("x", "value", "spread", "paper", "low", "high"), float))
    points = points.assign(size=0) if shown.x == SIZE else points
    by_column = points.groupby("column", sort=False)
    canvas, panels = panels_of(len(by_column), legend=0.5)
    for axes, (title, here) in zip(panels, by_column, strict=True):
        _panel(axes, here, shown)
        axes.set(title=title, xlabel=shown.label, ylabel="{scores} {metric} (x100)".format(**here.iloc[0]))
    legend_below(canvas)
    return canvas


def _panel(axes: Any, points: pd.DataFrame, shown: Figure) -> None:
    """A line for each size and series with bars, the paper's points, and rows without a place on the axis as lines across it."""
    curves = points[points["x"].notna()]
    for index, ((size, series), here) in enumerate(curves.groupby(["size", "series"], sort=False)):
        value, spread = here["value"], here["spread"]
        ends = [spread, spread] if shown.bars == "spread" else [value - here["low"], here["high"] - value]
        bars = [end.fillna(0.0) for end in ends]
        axes.errorbar(
            here["x"],
            value,  # without one a gap, not a line across it
            yerr=bars if any(map(any, bars)) else None,
            **look(index),
            capsize=3,
            elinewidth=0.8,
            label=series or f"{size:,} labelled examples",
        )
        printed = here[here["paper"].notna()]
        if len(printed):
            label = None if index else "the paper's"
            axes.plot(printed["x"], printed["paper"], "x", color=INK, markersize=7, label=label)
    strokes = itertools.cycle(((0, (6, 2)), (0, (1, 2))))
    references = points[points["x"].isna()]
    for row, at, stroke in zip(references["row"], references["value"], strokes, strict=False):
        if not math.isnan(at):
            axes.axhline(at, color=MUTED, linewidth=1, linestyle=stroke, label=row)
    if shown.x == HOURS:
        axes.locator_params(axis="x", nbins=5)
    else:
        _ticks(axes, sorted(set(curves["x"])), shown.log)


def _ticks(axes: Any, places: list[float], log: bool) -> None:
    """A tick at each place that is not within a tenth of the axis of the tick before."""
    from matplotlib.ticker import NullLocator

    scale, ticks = (math.log if log else float), list[float]()
    for place in places:
        if not ticks or scale(place) - scale(ticks[-1]) > 0.1 * (scale(places[-1]) - scale(places[0])):
            ticks.append(place)
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(ticks, [f"{tick:,.0f}" if tick >= 1000 else f"{tick:g}" for tick in ticks])
