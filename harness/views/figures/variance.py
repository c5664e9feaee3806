"""The variance of cells drawn: a panel for each column and size, the standard deviation of each source with its interval for each row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from harness.views.figures.panels import FAINT, PANEL, file_of, handles_of, legend_below, mark, panels_of
from harness.views.variance import SOURCES, CellVariance
from harness.wording import examples

VARIANCE = "variance"
"""The name of the figure, which every table has."""
REACH = 3
"""How far a panel reaches, as a multiple of its largest standard deviation: intervals of few subsets or seeds reach further."""


def drawn_variance(variances: Sequence[CellVariance], format: str, size_unit: str) -> bytes:
    """The figure as a file. Sources differ in marker and place, never in colour alone; what is not known is left out.
    `size_unit`: what the sizes count."""
    return file_of(lambda: _figure(variances, size_unit), format)


def _figure(variances: Sequence[CellVariance], size_unit: str) -> Any:
    panels: dict[tuple[str, int], list[CellVariance]] = {}
    for cell in variances:
        panels.setdefault((cell.title, cell.size), []).append(cell)
    rows = max(map(len, panels.values()), default=1)
    canvas, drawn_on = panels_of(len(panels), panel=(1.3 * PANEL[0], 1.0 + 0.55 * rows))
    for axes, ((title, size), cells) in zip(drawn_on, panels.items(), strict=True):
        _panel(axes, cells)
        axes.set(
            title=f"{title}, {examples(size, size_unit)}", xlabel="sd of a run's score by source (x100), 95 % interval"
        )
    legend_below(canvas, handles_of(canvas))
    return canvas


def _panel(axes: Any, cells: Sequence[CellVariance]) -> None:
    deviations = [100 * math.sqrt(s.variance) for cell in cells for s in cell.sources if s.variance]
    edge = REACH * max(deviations, default=1.0)
    cut = False
    for index, name in enumerate(SOURCES):
        for row, cell in enumerate(cells):
            source = next(source for source in cell.sources if source.name == name)
            if source.variance is None:
                continue
            place = row + 0.18 * (index - 1.5)
            center, low, high = (100 * math.sqrt(value or 0.0) for value in (source.variance, source.low, source.high))
            style = mark(index)
            axes.plot([min(low, center), min(high, edge)], [place, place], color=style["color"])
            axes.plot([center], [place], **style, label=name)
            if high > edge:
                axes.plot([edge], [place], color=style["color"], marker=">", markersize=6, clip_on=False)
                cut = True
    axes.set_yticks(range(len(cells)), [cell.row for cell in cells])
    axes.set(ylim=(len(cells) - 0.5, -0.5), xlim=(-0.05 * edge / REACH, edge))
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=FAINT)
    if cut:
        axes.plot(
            [],
            [],
            color="none",
            marker=">",
            markeredgecolor="black",
            markerfacecolor="none",
            label="the interval goes on",
        )
