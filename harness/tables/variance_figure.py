"""The variance of cells drawn: a panel for each column and size, the standard deviation of each source with its interval for each row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from harness.tables.caption import training_examples
from harness.tables.figure import MARKERS, PANEL, file_of, panels_of
from harness.tables.variance import SOURCES, CellVariance

VARIANCE = "variance"
"""The name of the figure, which every table has."""


def drawn_variance(found: Sequence[CellVariance], format: str) -> bytes:
    """The figure as a file. Sources differ in marker and place, never in colour alone; what is not known is left out."""
    return file_of(lambda: _figure(found), format)


def _figure(found: Sequence[CellVariance]) -> Any:
    panels = list(dict.fromkeys((each.title, each.size) for each in found))
    rows = max((sum((each.title, each.size) == panel for each in found) for panel in panels), default=1)
    canvas, drawn_on = panels_of(len(panels), panel=(1.3 * PANEL[0], 1.0 + 0.55 * rows))
    for axes, (title, size) in zip(drawn_on, panels, strict=True):
        _panel(axes, [each for each in found if (each.title, each.size) == (title, size)])
        axes.set(title=f"{title}, {training_examples(size)}")
        axes.set_xlabel("sd of a run's score by source (x100), 95 % interval")
    if panels:
        canvas.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(SOURCES), frameon=False)
    return canvas


def _panel(axes: Any, cells: Sequence[CellVariance]) -> None:
    most = max((100 * math.sqrt(s.variance) for cell in cells for s in cell.sources if s.variance), default=1.0)
    for index, name in enumerate(SOURCES):
        known = [
            (row, s)
            for row, cell in enumerate(cells)
            for s in cell.sources
            if s.name == name and s.variance is not None
        ]
        centres = [100 * math.sqrt(s.variance or 0.0) for _, s in known]
        lows = [100 * math.sqrt(s.low or 0.0) for _, s in known]
        highs = [100 * math.sqrt(s.high or 0.0) for _, s in known]
        axes.errorbar(
            centres,
            [row + 0.18 * (index - 1.5) for row, _ in known],
            xerr=[
                [max(0.0, c - low) for c, low in zip(centres, lows, strict=True)],
                [max(0.0, high - c) for c, high in zip(centres, highs, strict=True)],
            ],
            linestyle="none",
            marker=MARKERS[index],
            color=str(0.2 * index),
            capsize=2,
            label=name,
        )
    axes.set_yticks(range(len(cells)), [cell.row for cell in cells])
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.set_xlim(-0.05 * most, 3 * most)  # intervals of few subsets or seeds reach far: they leave the panel
    axes.grid(axis="x", color="0.85", linewidth=0.6)
    axes.set_axisbelow(True)
