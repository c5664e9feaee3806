"""Comparisons as a picture: each difference with its 95 % interval, beside the line of no difference. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.pages.curves import finish
from harness.pages.layout import Picture, Table
from harness.pages.picture import FAINT, INK, look, picture
from harness.tables.caption import in_points
from harness.tables.comparison import Comparison, Comparisons
from harness.tables.render import column_name, size_name

LINE = 0.17
"""Inches of one comparison."""
MOST = 40
"""Comparisons of one picture."""
WIDTH, LETTER = 4.2, 0.068
"""Inches of a picture, and of a letter of its labels."""


def pictures_of(found: Comparisons) -> list[Picture]:
    """A picture for each size, with the comparisons that have an interval; of too many, those of the last columns, Avg among them."""
    pictures = []
    for number, size in enumerate(found.grid.resolved.sizes):
        mine = [
            each for each in found.comparisons if each.size == size and each.difference and each.difference.interval
        ]
        columns = list(dict.fromkeys(each.column for each in mine))
        while len(shown := [each for each in mine if each.column in columns]) > MOST and len(columns) > 1:
            columns.pop(0)
        if shown:
            pictures.append(_picture(number, size, shown, found, len(mine)))
    return pictures


def _picture(number: int, size: int, mine: Sequence[Comparison], found: Comparisons, every: int) -> Picture:
    where = size_name(size).lower()
    outside = [f"{each.row} in {each.title}" for each in mine if _apart(each)]
    said = f"Apart from 0: {', '.join(outside)}." if outside else "Every interval holds 0."
    rows = [
        [column_name(found.grid, each.column), each.row, *(in_points(value, sign=True) for value in _values(each))]
        for each in mine
    ]
    data = Table(
        f"Difference from {found.against} in points: {where}",
        ["Column", "Row", "Points", "Low", "High"],
        rows,
        frozenset({0, 1}),
    )
    svg = picture(
        lambda: _drawn(mine, found),
        f"forest{number}",
        f"Differences from {found.against}: {where}",
        f"Points and 95 % intervals of {len(mine)} differences. {said}",
    )
    some = f" ({len(mine)} of {every}: the table below has all)" if len(mine) < every else ""
    caption = (
        f"Minus {found.against}, {where}: difference and 95 % interval{some}; dotted: ±{in_points(found.region)} points"
    )
    return Picture(svg, caption, data)


def _values(each: Comparison) -> tuple[float, float, float]:
    assert each.difference is not None
    assert each.difference.interval is not None
    return each.difference.mean, each.difference.interval.low, each.difference.interval.high


def _apart(each: Comparison) -> bool:
    _, low, high = _values(each)
    return low > 0 or high < 0


def _drawn(mine: Sequence[Comparison], found: Comparisons) -> Any:
    from matplotlib.figure import Figure  # no pyplot: no backend and no global state

    columns = list(dict.fromkeys(each.column for each in mine))
    rows = list(found.grid.resolved.printed_rows)
    height = LINE * (len(mine) + 0.8 * len(columns)) + 0.7
    names = [f"{each.title}  {each.row}" if len(columns) > 1 else each.row for each in mine]
    figure = Figure(figsize=(WIDTH, height))
    left = min(0.5, (0.15 + LETTER * max(map(len, names))) / WIDTH)
    figure.subplots_adjust(left, 0.5 / height, 1 - 0.12 / WIDTH, 1 - 0.1 / height)
    axes = figure.add_subplot()
    place, places = 0.0, []
    for column in columns:
        for each in (each for each in mine if each.column == column):
            mean, low, high = (100 * value for value in _values(each))
            mine_look = look(rows.index(each.row))
            axes.plot([low, high], [place, place], color=mine_look["color"], linewidth=1.4)
            filled = mine_look["color"] if _apart(each) else "none"
            axes.plot([mean], [place], **mine_look, markerfacecolor=filled, markersize=4.5)
            places.append(place)
            place -= 1.0
        place -= 0.8
    axes.axvline(0, color=INK, linewidth=0.8)
    for edge in (-100 * found.region, 100 * found.region):
        axes.axvline(edge, color=INK, linewidth=0.7, linestyle=":")
    axes.set_yticks(places, names, fontsize=8)
    axes.set(xlabel=f"minus {found.against}, points", ylim=(place + 0.9, 0.9))
    axes.tick_params(axis="y", length=0)
    finish(axes)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    return figure
