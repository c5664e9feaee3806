"""The figure of costs: the score of each row over the FLOPs of one of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.analysis.cost import CellCost, cost_frame
from harness.analysis.schema import csv_text
from harness.report.figures.panels import MUTED, PANEL, file_of, handles_of, legend_below, mark, panels_of
from harness.wording import examples

COST = "cost"
"""The name of the figure, which every table has."""
WIDE = 1.4
"""Two costs within a factor of two have a tick each from this ratio on: closer labels would overlap."""
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
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
    side, before = 0, 0.0
    for index, cell in enumerate(by_cost):
        close = index and cell.total.flops < CLOSE * before
        side = side + 1 if close else 0  # beside points of equal cost, not upon them
        before = before if side else cell.total.flops
        half = None if cell.high is None else 100 * (cell.high - cell.score)
        place, style = cell.total.flops * APART**side, mark(rows.index(cell.row))
        axes.errorbar([place], [100 * cell.score], yerr=half, **style, capsize=3, label=cell.row)
    cheap, dear = (cell.total.flops for cell in (by_cost[0], by_cost[-1]))
    best = [cell for cell in by_cost if not cell.beaten]
    axes.plot(
        [cell.total.flops for cell in best] + [by_cost[-1].total.flops],
        [100 * cell.score for cell in best] + [100 * best[-1].score],
        color=MUTED,
        linewidth=0.8,
        drawstyle="steps-post",
        zorder=0,
        label="best at this cost" if dear > cheap else None,
    )
    if max(cell.total.flops for cell in by_cost) > 0:
        from matplotlib.ticker import LogLocator, NullLocator

        axes.set_xscale("log")
        if dear < 2 * cheap:  # no round number may lie between them
            axes.set_xlim(cheap / 2, 2 * dear)  # points beside others of equal cost would be read as dearer
            ends = (cheap, dear) if dear > WIDE * cheap else (cheap,)
            axes.set_xticks(ends, [scientific(flops, 2) for flops in ends])
        else:
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if dear < 50 * cheap else (1,)))
            axes.xaxis.set_major_formatter(lambda flops, _: scientific(flops))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.margins(x=0.1)


def scientific(flops: float, digits: int = 0) -> str:
    """2·10¹²: matplotlib's own formatter writes TeX, which figures do not read. `digits`: after the point."""
    factor, _, exponent = f"{flops:.{digits}e}".partition("e")
    power = f"10{str(int(exponent)).translate(SUPERSCRIPT)}"
    return power if factor == "1" else f"{factor}·{power}"
