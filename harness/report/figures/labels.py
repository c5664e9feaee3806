"""The figure of labels: the score of each row over the sizes, and where it is extrapolated to."""

from __future__ import annotations

from typing import Any

from harness.analysis.labels import Labels
from harness.report.figures.panels import PANEL, file_of, handles_of, legend_below, look, panels_of
from harness.report.table import column_name

APART = 1.04
"""Rows stand side by side, each so many times as far to the right as the one before."""


def drawn(labels: Labels, format: str) -> bytes:
    """The figure as a file: a panel for each column, a line for each row with bars of its 95 % intervals; hollow, at the end of a dotted line, is what no run has."""
    return file_of(lambda: _figure(labels), format)


def _figure(labels: Labels) -> Any:
    scores = [each for each in labels.figures if each.kind == "score" and each.estimate is not None]
    columns, rows = (list(dict.fromkeys(getattr(each, name) for each in scores)) for name in ("column", "row"))
    canvas, drawn_on = panels_of(len(columns), panel=(1.3 * PANEL[0], 1.2 * PANEL[1]))
    for axes, column in zip(drawn_on, columns, strict=True):
        for index, row in enumerate(rows):
            points = [each for each in scores if (each.column, each.row) == (column, row)]
            places = [each.size * APART**index for each in points]
            values = [100 * (each.estimate or 0.0) for each in points]
            known = sum(not each.extrapolated for each in points)
            style = look(index)
            axes.plot(places[:known], values[:known], **style, label=row)
            axes.plot(places[known - 1 :], values[known - 1 :], color=style["color"], linestyle=":", zorder=1)
            axes.plot(places[known:], values[known:], **(style | {"linestyle": "none"}), markerfacecolor="white")
            bars = [
                (p, 100 * e.low, 100 * e.high)
                for p, e in zip(places, points, strict=True)
                if e.low is not None and e.high is not None
            ]
            for place, low, high in bars:
                axes.vlines(place, low, high, color=style["color"], linewidth=0.8, zorder=1)
        sizes = sorted({each.size for each in scores if each.column == column and not each.extrapolated})
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], minor=False)
        axes.minorticks_off()
        axes.set(title=column_name(labels.grid, column), xlabel=labels.grid.resolved.size_unit, ylabel="score (x100)")
    legend_below(canvas, handles_of(canvas))
    return canvas
