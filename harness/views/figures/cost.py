"""The figure of costs: the score of each row over the FLOPs of one of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.analysis.schema import csv_text
from harness.views.figures.panels import MUTED, PANEL, file_of, handles_of, legend_below, mark, panels_of
from harness.views.numbers.cost import CellCost, cost_frame
from harness.wording import examples

COST = "cost"
"""The name of the figure, which every table has."""
WIDE = 1.4
"""Two costs within a factor of two have a tick each from this ratio on: closer labels would overlap."""
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
FREE = 4
"""Rows without FLOPs are drawn where this part of the cheapest other row's would be."""
CLOSE, APART = 1.05, 1.04
"""Points whose costs differ by less than `CLOSE` times are drawn side by side, each `APART` times as far to the right."""


def csv_of(costs: Sequence[CellCost]) -> str:
    """Its points as CSV."""
    return csv_text(cost_frame(costs))


def drawn(costs: Sequence[CellCost], format: str, size_unit: str) -> bytes:
    """The figure as a file: a panel for each column and size, a point for each row, with bars of the crossed 95 % interval. A step line is the
    highest score that so many FLOPs give. `size_unit`: what the sizes count."""
    return file_of(lambda: _figure(costs, size_unit), format)


def _figure(costs: Sequence[CellCost], size_unit: str) -> Any:
    panels: dict[tuple[str, int], list[CellCost]] = {}
    for cell in costs:
        panels.setdefault((cell.column, cell.size), []).append(cell)
    rows = list(dict.fromkeys(cell.row for cell in costs))
    canvas, drawn_on = panels_of(len(panels), panel=(1.3 * PANEL[0], 1.2 * PANEL[1]))
    for axes, cells in zip(drawn_on, panels.values(), strict=True):
        _panel(axes, sorted(cells, key=lambda cell: cell.total.flops), rows)
        title, metric = cells[0].title, cells[0].metric or "average"
        axes.set(
            title=f"{title}, {examples(cells[0].size, size_unit)}", xlabel="FLOPs of a run", ylabel=f"{metric} (x100)"
        )
    legend_below(canvas, handles_of(canvas))
    return canvas


def _panel(axes: Any, by_cost: Sequence[CellCost], rows: Sequence[str]) -> None:
    costs = [cell.total.flops for cell in by_cost]
    positive = [flops for flops in costs if flops > 0]
    free = positive[0] / FREE if positive else 0.0
    places = [flops or free for flops in costs]
    side, before = 0, 0.0
    for index, (cell, place) in enumerate(zip(by_cost, places, strict=True)):
        close = index and place < CLOSE * before
        side = side + 1 if close else 0  # beside points of equal cost, not upon them
        before = before if side else place
        half = None if cell.high is None else 100 * (cell.high - cell.score)
        style = mark(rows.index(cell.row))
        axes.errorbar([place * APART**side], [100 * cell.score], yerr=half, **style, capsize=3, label=cell.row)
    best = [(place, cell) for place, cell in zip(places, by_cost, strict=True) if not cell.beaten]
    axes.plot(
        [place for place, _ in best] + [places[-1]],
        [100 * cell.score for _, cell in best] + [100 * best[-1][1].score],
        color=MUTED,
        linewidth=0.8,
        drawstyle="steps-post",
        zorder=0,
        label="best at this cost" if places[-1] > places[0] else None,
    )
    if positive:
        _ticks(axes, positive[0], positive[-1], free if 0 in costs else None)


def _ticks(axes: Any, cheap: float, dear: float, free: float | None) -> None:
    """A logarithmic axis from the cheapest row to the dearest. `free`: where rows without FLOPs stand, under a tick 0."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log")
    if dear < 2 * cheap:  # no round number may lie between them
        axes.set_xlim((free or cheap) / 2, 2 * dear)  # points beside others of equal cost would be read as dearer
        ends = [cheap, dear] if dear > WIDE * cheap else [cheap]
        ticks = {flops: scientific(flops, 2) for flops in ends}
    else:
        locator = LogLocator(subs=(1, 2, 5) if dear < 50 * cheap else (1, 3) if dear < 500 * cheap else (1,))
        ticks = {flops: scientific(flops) for flops in locator.tick_values(cheap, dear) if cheap <= flops <= dear}
    if free:
        ticks = {free: "0", **ticks}
    axes.set_xticks([*ticks], [*ticks.values()])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.1)


def scientific(flops: float, digits: int = 0) -> str:
    """2·10¹²: matplotlib's own formatter writes TeX, which figures do not read. `digits`: after the point."""
    factor, _, exponent = f"{flops:.{digits}e}".partition("e")
    power = f"10{str(int(exponent)).translate(SUPERSCRIPT)}"
    return power if factor == "1" else f"{factor}·{power}"
