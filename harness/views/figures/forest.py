"""Comparisons drawn: each difference with its unadjusted 95 % interval, beside the line of no difference; in all panels over one range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.views.figures.panels import FAINT, INK, file_of, look, panels_of
from harness.views.numbers.comparison import Comparison, Comparisons
from harness.views.table import size_name

LINE, WIDTH = 0.17, 4.2
"""Inches of one comparison, and of a panel."""
MOST = 40
"""Comparisons of one panel."""


def drawn(comparisons: Comparisons, format: str) -> bytes:
    """The figure as a file, a panel for each size. A filled mark: the verdict is higher or lower."""
    panels = [shown for shown, _ in _panels(comparisons).values()]
    return file_of(lambda: _figure(panels, comparisons), format)


def picture_of(comparisons: Comparisons) -> Callable[[], Any] | None:
    """Makes the figure, where some comparison has an interval."""
    panels = [shown for shown, _ in _panels(comparisons).values()]
    return (lambda: _figure(panels, comparisons)) if panels else None


def _panels(comparisons: Comparisons) -> dict[int, tuple[list[Comparison], int]]:
    """By size the comparisons that are drawn, and how many there are."""
    panels = {}
    for size in comparisons.grid.resolved.sizes:
        judged = [c for c in comparisons.comparisons if c.size == size and c.difference and c.difference.interval]
        columns = list(dict.fromkeys(comparison.column for comparison in judged))
        while len(shown := [c for c in judged if c.column in columns]) > MOST and len(columns) > 1:
            columns.pop(0)
        if shown:
            panels[size] = shown, len(judged)
    return panels


def _values(comparison: Comparison) -> tuple[float, float, float]:
    assert comparison.difference is not None
    assert comparison.difference.interval is not None
    return comparison.difference.mean, comparison.difference.interval.low, comparison.difference.interval.high


def _figure(panels: Sequence[Sequence[Comparison]], comparisons: Comparisons) -> Any:
    ends = [100 * end for shown, _ in _panels(comparisons).values() for c in shown for end in _values(c)]
    ends += [100 * comparisons.region, -100 * comparisons.region]
    margin = 0.03 * (max(ends) - min(ends))
    lines = max(len(shown) + 0.8 * len({c.column for c in shown}) for shown in panels)
    canvas, drawn_on = panels_of(len(panels), 2, (WIDTH, LINE * lines + 0.7))
    for axes, shown in zip(drawn_on, panels, strict=True):
        _panel(axes, shown, comparisons)
        axes.set_xlim(min(ends) - margin, max(ends) + margin)
        if len(panels) > 1:
            axes.set_title(size_name(shown[0].size, comparisons.grid.resolved.size_unit))
    return canvas


def _panel(axes: Any, shown: Sequence[Comparison], comparisons: Comparisons) -> None:
    columns = list(dict.fromkeys(comparison.column for comparison in shown))
    rows = list(comparisons.grid.resolved.printed_rows)
    place, places = 0.0, {}
    for column in columns:
        for comparison in (c for c in shown if c.column == column):
            mean, low, high = (100 * value for value in _values(comparison))
            style = look(rows.index(comparison.row))
            axes.plot([low, high], [place, place], color=style["color"])
            filled = style["color"] if comparison.verdict in ("higher", "lower") else "none"
            axes.plot([mean], [place], **style, markerfacecolor=filled)
            name = f"{comparison.title}  {comparison.row}" if len(columns) > 1 else comparison.row
            places[place] = name
            place -= 1.0
        place -= 0.8
    axes.axvline(0, color=INK, linewidth=0.8)
    for edge in (-100 * comparisons.region, 100 * comparisons.region):
        axes.axvline(edge, color=INK, linewidth=0.7, linestyle=":")
    axes.set_yticks([*places], [*places.values()], fontsize=8)
    axes.set(xlabel=f"minus {comparisons.against}, points (95 %, unadjusted)", ylim=(place + 0.9, 0.9))
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=FAINT)
