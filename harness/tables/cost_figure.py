"""The figure of costs: the score of each row over the FLOPs of one of its runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from harness.tables.caption import examples
from harness.tables.costs import CellCost, cost_frame
from harness.tables.figure import MARKERS, PANEL, file_of, panels_of
from harness.tables.schema import csv_text

COST = "cost"
"""The name of the figure, which every table has."""
CLOSE, APART = 1.05, 1.04
"""Points whose costs differ by less than `CLOSE` times are drawn side by side, each `APART` times as far to the right."""


def csv_of(found: Sequence[CellCost]) -> str:
    """Its points as CSV."""
    return csv_text(cost_frame(found))


def drawn(found: Sequence[CellCost], format: str) -> bytes:
    """The figure as a file: a panel for each column and size, a point for each row, with bars of the crossed 95 % interval. A step line is the
    highest score that so many FLOPs give. Rows are named at their points."""
    return file_of(lambda: _figure(found), format)


def _figure(found: Sequence[CellCost]) -> Any:
    panels = list(dict.fromkeys((each.column, each.size) for each in found))
    canvas, drawn_on = panels_of(len(panels), panel=(1.3 * PANEL[0], 1.2 * PANEL[1]))
    for axes, (column, size) in zip(drawn_on, panels, strict=True):
        mine = sorted(
            (each for each in found if (each.column, each.size) == (column, size)), key=lambda each: each.total.flops
        )
        _panel(axes, mine)
        axes.set(
            title=f"{mine[0].title}, {examples(size)}",
            xlabel="FLOPs of a run",
            ylabel=f"{mine[0].metric or 'average'} (x100)",
        )
    return canvas


def _panel(axes: Any, mine: Sequence[CellCost]) -> None:
    """`mine`: by cost."""
    rows = list(dict.fromkeys(each.row for each in mine))
    side, before = 0, 0.0
    for index, each in enumerate(mine):
        side = (
            side + 1 if index and each.total.flops < CLOSE * before else 0
        )  # beside points of equal cost, not upon them
        before = before if side else each.total.flops
        half = None if each.high is None else 100 * (each.high - each.score)
        axes.errorbar(
            [each.total.flops * APART**side],
            [100 * each.score],
            yerr=half,
            color=str(0.5 * index / max(1, len(mine))),
            marker=MARKERS[rows.index(each.row) % len(MARKERS)],
            linestyle="none",
            capsize=3,
            label=each.row,
        )
    best = [each for each in mine if not each.beaten]
    axes.plot(
        [each.total.flops for each in best] + [mine[-1].total.flops],
        [100 * each.score for each in best] + [100 * best[-1].score],
        color="0.6",
        linewidth=0.8,
        drawstyle="steps-post",
        zorder=0,
        label="best at this cost" if len(mine) > 1 else None,
    )
    if max(each.total.flops for each in mine) > 0:
        from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullLocator

        axes.set_xscale("log")
        cheap, dear = (each.total.flops for each in (mine[0], mine[-1]))
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if dear < 50 * cheap else (1,)))
        axes.xaxis.set_major_formatter(
            LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(math.inf, math.inf))
        )
        axes.xaxis.set_minor_locator(NullLocator())
        axes.margins(x=0.1)
    axes.grid(axis="y", color="0.85", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize="small")
